#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "lab/policies/common/lloyd.h"
#include "ops/select/project_cpu.h"

namespace litecache::lab::ops {
namespace {

constexpr int64_t kPieceRows = 96;  // points multiplied with all centroids at once

double SquaredDistance(const float* a, const float* b, int64_t dim) {
  double sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    const double difference = static_cast<double>(a[c]) - static_cast<double>(b[c]);
    sum += difference * difference;
  }
  return sum;
}

double MeanVariance(const Points& points) {
  std::vector<double> sum(static_cast<size_t>(points.dim)), square(sum.size());
  for (int64_t i = 0; i < points.count; ++i) {
    const float* row = points.rows + i * points.stride;
    for (size_t c = 0; c < sum.size(); ++c) {
      const auto x = static_cast<double>(row[c]);
      sum[c] += x;
      square[c] += x * x;
    }
  }
  const auto n = static_cast<double>(points.count);
  double variance = 0;
  for (size_t c = 0; c < sum.size(); ++c) variance += square[c] / n - (sum[c] / n) * (sum[c] / n);
  return variance / static_cast<double>(points.dim);
}

}  // namespace

void AssignByProduct(const Points& points, const float* centroids, const float* bias,
                     int64_t clusters, int32_t* labels) {
  LC_CHECK(clusters >= 1 && points.dim >= 1);
  const int64_t width = (clusters + 15) / 16 * 16;
  std::vector<float> weight(static_cast<size_t>(points.dim * width));
  for (int64_t j = 0; j < clusters; ++j) {
    for (int64_t c = 0; c < points.dim; ++c) {
      weight[static_cast<size_t>(c * width + j)] = centroids[j * points.dim + c];
    }
  }
  std::vector<float> products(static_cast<size_t>(kPieceRows * width));
  for (int64_t begin = 0; begin < points.count; begin += kPieceRows) {
    const int64_t rows = std::min(kPieceRows, points.count - begin);
    cpu::Project(points.rows + begin * points.stride, points.stride, rows, points.dim,
                 weight.data(), width, products.data());
    for (int64_t r = 0; r < rows; ++r) {
      float* scores = products.data() + r * width;
      if (bias != nullptr) {
        for (int64_t j = 0; j < clusters; ++j) scores[j] += bias[j];
      }
      // The maximum first, then its index: both loops vectorize, an arg max does not.
      float best = scores[0];
      for (int64_t j = 1; j < clusters; ++j) best = std::max(best, scores[j]);
      int64_t index = 0;
      while (index + 1 < clusters && !(scores[index] == best)) ++index;
      labels[begin + r] = static_cast<int32_t>(index);
    }
  }
}

void AssignNearest(const Points& points, const float* centroids, int64_t clusters,
                   int32_t* labels) {
  std::vector<float> bias(static_cast<size_t>(clusters));
  for (int64_t j = 0; j < clusters; ++j) {
    double square = 0;
    for (int64_t c = 0; c < points.dim; ++c) {
      const auto x = static_cast<double>(centroids[j * points.dim + c]);
      square += x * x;
    }
    bias[static_cast<size_t>(j)] = static_cast<float>(-square / 2);
  }
  AssignByProduct(points, centroids, bias.data(), clusters, labels);
}

Lloyd::Lloyd(const Points& points, int64_t clusters, uint64_t seed)
    : points_(points),
      clusters_(clusters),
      variance_(MeanVariance(points)),
      labels_(static_cast<size_t>(points.count)),
      sums_(static_cast<size_t>(clusters * points.dim)),
      counts_(static_cast<size_t>(clusters)) {
  LC_CHECK(clusters >= 1 && clusters <= points.count, "{} clusters of {} points", clusters,
           points.count);
  std::mt19937_64 random(seed);
  std::vector<int64_t> all(static_cast<size_t>(points.count)), drawn;
  std::iota(all.begin(), all.end(), 0);
  std::sample(all.begin(), all.end(), std::back_inserter(drawn), clusters, random);
  for (const int64_t i : drawn) {
    const float* row = points.rows + i * points.stride;
    centroids_.insert(centroids_.end(), row, row + points.dim);
  }
}

bool Lloyd::Iterate(double tolerance) {
  const int64_t dim = points_.dim;
  Assign(labels_.data());
  std::fill(sums_.begin(), sums_.end(), 0.0);
  std::fill(counts_.begin(), counts_.end(), 0);
  for (int64_t i = 0; i < points_.count; ++i) {
    const auto j = static_cast<size_t>(labels_[static_cast<size_t>(i)]);
    ++counts_[j];
    const float* row = points_.rows + i * points_.stride;
    double* sum = sums_.data() + static_cast<int64_t>(j) * dim;
    for (int64_t c = 0; c < dim; ++c) sum[c] += static_cast<double>(row[c]);
  }
  const auto empty = std::count(counts_.begin(), counts_.end(), 0);
  if (empty > 0) {
    std::vector<std::pair<double, int64_t>> far;
    for (int64_t i = 0; i < points_.count; ++i) {
      far.emplace_back(
          -SquaredDistance(points_.rows + i * points_.stride,
                           centroids_.data() + labels_[static_cast<size_t>(i)] * dim, dim),
          i);
    }
    std::partial_sort(far.begin(), far.begin() + empty, far.end());
    auto next = far.begin();
    for (size_t j = 0; j < counts_.size(); ++j) {
      if (counts_[j] > 0) continue;
      const int64_t i = (next++)->second;
      const auto from = static_cast<size_t>(labels_[static_cast<size_t>(i)]);
      if (counts_[from] <= 1) continue;  // moving it would only empty another cluster
      const float* row = points_.rows + i * points_.stride;
      for (int64_t c = 0; c < dim; ++c) {
        sums_[from * static_cast<size_t>(dim) + static_cast<size_t>(c)] -=
            static_cast<double>(row[c]);
        sums_[j * static_cast<size_t>(dim) + static_cast<size_t>(c)] = static_cast<double>(row[c]);
      }
      --counts_[from];
      counts_[j] = 1;
      labels_[static_cast<size_t>(i)] = static_cast<int32_t>(j);
    }
  }
  double moved = 0;
  for (size_t j = 0; j < counts_.size(); ++j) {
    if (counts_[j] == 0) continue;
    for (int64_t c = 0; c < dim; ++c) {
      const auto at = static_cast<int64_t>(j) * dim + c;
      const auto mean =
          static_cast<float>(sums_[static_cast<size_t>(at)] / static_cast<double>(counts_[j]));
      const double move =
          static_cast<double>(mean) - static_cast<double>(centroids_[static_cast<size_t>(at)]);
      moved += move * move;
      centroids_[static_cast<size_t>(at)] = mean;
    }
  }
  return moved > tolerance * variance_;
}

}  // namespace litecache::lab::ops
