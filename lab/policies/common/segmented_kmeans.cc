#include "lab/policies/common/segmented_kmeans.h"

#include <algorithm>

#include "base/error.h"
#include "lab/policies/common/kmeans.h"

namespace litecache::lab {
namespace {

// Number of tokens between two checks of the cancel flag in the last iteration.
constexpr int64_t kCancelTokens = 1024;

// Reads a token's key as f32.
void ReadKey(const ops::PagedRows& rows, int64_t token, std::vector<float>* row) {
  ops::ConvertRow(rows.format, rows.Row(token), {ops::RowEncoding::kF32, rows.format.head_dim},
                  reinterpret_cast<std::byte*>(row->data()));
}

}  // namespace

bool SegmentedKMeans(Stream& stream, const KMeansWork& work, KMeansResult* result,
                     KMeansTrace* trace) {
  const auto d = static_cast<size_t>(work.rows.format.head_dim);
  const int64_t n = work.count, clusters = work.clusters;
  LC_CHECK(n >= 1 && clusters >= 1 && clusters <= n && clusters % work.segments == 0 &&
               work.iterations >= 1,
           "{} clusters of {} tokens in {} segments", clusters, n, work.segments);
  const auto cancelled = [&] {
    return work.cancel != nullptr && work.cancel->load(std::memory_order_relaxed);
  };

  std::vector<float> row(2 * d), mean(d);
  std::vector<double> sums(d);
  for (int64_t i = 0; i < n; ++i) {
    ReadKey(work.rows, work.begin + i, &row);
    for (size_t c = 0; c < d; ++c) sums[c] += static_cast<double>(row[c]);
  }
  for (size_t c = 0; c < d; ++c) mean[c] = static_cast<float>(sums[c] / static_cast<double>(n));
  const auto points = [&](int64_t begin, int64_t count) {
    return ops::KeyPoints{.rows = work.rows,
                          .begin = work.begin + begin,
                          .count = count,
                          .channels = work.rows.format.head_dim,
                          .center = mean.data()};
  };

  result->assignment.assign(static_cast<size_t>(n), -1);
  result->centroids.resize(static_cast<size_t>(clusters) * d);
  result->sizes.assign(static_cast<size_t>(clusters), 0);
  for (int64_t c = 0; c < clusters; ++c) {
    // The middle of the c-th range of n / clusters tokens.
    ReadKey(work.rows, work.begin + (2 * c + 1) * n / (2 * clusters), &row);
    float* centroid = result->centroids.data() + static_cast<size_t>(c) * d;
    for (size_t i = 0; i < d; ++i) centroid[i] = row[i] - mean[i];
  }

  const int64_t segment_tokens = n / work.segments, segment_clusters = clusters / work.segments;
  for (int64_t iteration = 0; iteration + 1 < work.iterations; ++iteration) {
    for (int64_t segment = 0; segment < work.segments; ++segment) {
      if (cancelled()) return false;
      const ops::KeyPoints part = points(segment * segment_tokens, segment_tokens);
      int32_t* assignment = result->assignment.data() + segment * segment_tokens;
      const auto first = static_cast<int32_t>(segment * segment_clusters);
      float* centroids = result->centroids.data() + static_cast<size_t>(first) * d;
      const ops::AssignWork assign{.points = part,
                                   .centroids = centroids,
                                   .clusters = segment_clusters,
                                   .first = first,
                                   .assignment = assignment};
      ops::AssignToCentroids(stream, {&assign, 1});
      const ops::CentroidWork update{.points = part,
                                     .assignment = assignment,
                                     .clusters = segment_clusters,
                                     .first = first,
                                     .normalize = true,
                                     .centroids = centroids,
                                     .sizes = result->sizes.data() + first};
      ops::UpdateCentroids(stream, {&update, 1});
    }
    if (trace != nullptr) trace->assignments.push_back(result->assignment);
  }

  for (int64_t begin = 0; begin < n; begin += kCancelTokens) {
    if (cancelled()) return false;
    const ops::AssignWork assign{.points = points(begin, std::min(kCancelTokens, n - begin)),
                                 .centroids = result->centroids.data(),
                                 .clusters = clusters,
                                 .assignment = result->assignment.data() + begin};
    ops::AssignToCentroids(stream, {&assign, 1});
  }
  if (trace != nullptr) trace->assignments.push_back(result->assignment);
  const ops::CentroidWork update{.points = points(0, n),
                                 .assignment = result->assignment.data(),
                                 .clusters = clusters,
                                 .centroids = result->centroids.data(),
                                 .sizes = result->sizes.data()};
  ops::UpdateCentroids(stream, {&update, 1});
  for (int64_t c = 0; c < clusters; ++c) {
    float* centroid = result->centroids.data() + static_cast<size_t>(c) * d;
    for (size_t i = 0; i < d; ++i) centroid[i] += mean[i];
  }
  return true;
}

}  // namespace litecache::lab
