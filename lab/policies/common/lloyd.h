// Clustering of vectors on the calling thread, for the policies' background threads.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/namespaces.h"

namespace litecache::lab::ops {

// Points in f32: row i starts at rows + i * stride and has `dim` values.
struct Points {
  const float* rows = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t dim = 0;
};

// labels[i] = the j < clusters with the largest points[i].centroids[j] + bias[j] (bias null: none);
// ties go to the lowest. centroids [clusters][dim].
void AssignByProduct(const Points& points, const float* centroids, const float* bias,
                     int64_t clusters, int32_t* labels);

// The centroid at the smallest Euclidean distance: the largest product minus half its squared norm.
void AssignNearest(const Points& points, const float* centroids, int64_t clusters, int32_t* labels);

// Lloyd's algorithm, one iteration per call. `points` must outlive this.
class Lloyd {
 public:
  // Starts from distinct points drawn with `seed`. clusters <= points.count.
  Lloyd(const Points& points, int64_t clusters, uint64_t seed);

  // Assigns every point to its nearest centroid, and moves each centroid to the mean of its points.
  // An empty cluster takes the point farthest from its centroid. Returns false once the sum of the
  // centroids' squared moves is at most `tolerance` times the points' mean variance per channel (as
  // scikit-learn's tol).
  bool Iterate(double tolerance);

  const std::vector<float>& centroids() const { return centroids_; }  // [clusters][dim]
  // Labels for the current centroids.
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

}  // namespace litecache::lab::ops
