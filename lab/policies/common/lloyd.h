// Clustering of vectors on the calling thread: what policies run on threads beside the one that
// computes.
#pragma once

#include <cstdint>
#include <vector>

namespace litecache::ops {

// Points of f32: row i at rows + i * stride, `dim` values.
struct Points {
  const float* rows = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t dim = 0;
};

// labels[i] = the j < clusters with the largest points[i].centroids[j] + bias[j] (bias null: none);
// equal ones: the lower. centroids [clusters][dim].
void AssignByProduct(const Points& points, const float* centroids, const float* bias,
                     int64_t clusters, int32_t* labels);

// The centroid at the least Euclidean distance: the largest product less half its squared norm.
void AssignNearest(const Points& points, const float* centroids, int64_t clusters, int32_t* labels);

// Lloyd's algorithm, one iteration a call. points must outlive it.
class Lloyd {
 public:
  // Starts from distinct points drawn with `seed`. clusters <= points.count.
  Lloyd(const Points& points, int64_t clusters, uint64_t seed);

  // Assigns every point to its nearest centroid, and makes the centroids their points' means. A
  // cluster without points takes the point that is farthest from its centroid. Returns whether it
  // goes on: not when the centroids' squared moves add up to at most `tolerance` times the points'
  // mean variance of a channel (as scikit-learn's tol).
  bool Iterate(double tolerance);

  const std::vector<float>& centroids() const { return centroids_; }  // [clusters][dim]
  // Labels as of these centroids.
  void Assign(int32_t* labels) const {
    AssignNearest(points_, centroids_.data(), clusters_, labels);
  }

 private:
  Points points_;
  int64_t clusters_;
  double variance_;
  std::vector<float> centroids_;
  std::vector<int32_t> labels_;
  std::vector<double> sums_;
  std::vector<int64_t> counts_;
};

}  // namespace litecache::ops
