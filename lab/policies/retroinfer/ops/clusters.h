// Attention over an index of clusters: selects clusters for a query, and estimates those that are
// not read (RetroInfer's wave index).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/common/row_format.h"

namespace litecache::lab::ops {

// Clusters of one (sequence, layer, KV head). Cluster c is in page c / page_clusters: first the
// page's rows [centroid | sum of the values] in `format` (bf16 or f32), then an int32 per row: the
// number of tokens, 0 for an empty cluster.
struct PagedClusters {
  std::byte* const* pages = nullptr;
  int64_t page_clusters = 0;
  RowFormat format;

  std::byte* Row(int64_t c) const {
    return pages[c / page_clusters] + static_cast<size_t>(c % page_clusters) * format.row_bytes();
  }
  int32_t* Sizes(int64_t page) const {
    return reinterpret_cast<int32_t*>(pages[page] +
                                      static_cast<size_t>(page_clusters) * format.row_bytes());
  }
  int32_t& Size(int64_t c) const { return Sizes(c / page_clusters)[c % page_clusters]; }

  // Number of clusters in a page of page_bytes.
  static int64_t PageClusters(uint64_t page_bytes, const RowFormat& format) {
    return static_cast<int64_t>(page_bytes / (format.row_bytes() + sizeof(int32_t)));
  }
};

// Selects the clusters with the highest scores: sum over the group's query heads of softmax(scale *
// q . centroid), the softmax over the non-empty clusters. Ties go to the lower cluster.
struct ClusterSelectWork {
  const float* q = nullptr;  // [group][head_dim]
  float scale = 0;           // > 0
  PagedClusters clusters;
  int64_t count = 0;        // clusters, including empty ones; >= 1
  int64_t ranked = 0;       // number of best clusters, the best first,
  int64_t unranked = 0;     // and of next ones, in ascending order; at least 1 together
  float* logits = nullptr;  // result [group][count]: scale * q . centroid
  float* scores = nullptr;  // result [count]; below 0 for empty clusters
  // Results, without empty clusters; ids has room for min(ranked + unranked, count).
  int32_t* ids = nullptr;  // the ranked ones, then the others
  int64_t ranked_count = 0, unranked_count = 0;
};
void ClusterSelect(Stream& stream, int64_t group, std::span<ClusterSelectWork> work);

// Computes the contribution of the clusters ids[0 .. count) to the attention of a group's query
// heads:
//   numerator sum of exp(x) * (sum of the values), denominator sum of size * exp(x), x = logit.
// `states` is input for RowAttention (row_attention.h): EstimateStates(count) states, each for a
// part of the clusters.
struct ClusterEstimateWork {
  PagedClusters clusters;
  const float* logits = nullptr;  // [group][logit_stride]
  int64_t logit_stride = 0;
  const int32_t* ids = nullptr;
  int64_t count = 0;
  float* states = nullptr;  // result [EstimateStates(count)][StateSize(group, head_dim)]
};
void ClusterEstimate(Stream& stream, int64_t group, std::span<const ClusterEstimateWork> work);

// Depends only on the count, and so do the results.
int64_t EstimateStates(int64_t count);

}  // namespace litecache::lab::ops
