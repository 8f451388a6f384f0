// RetroInfer's segmented spherical k-means on the device: runs of tokens become clusters, whose
// rows end in the host store in the order of their clusters (lab/policies/retroinfer/README.md,
// "Index").
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

// A sequence's lists of rows: row r of list i lies in page pages[r / page_rows * lists + i]. With a
// ring, token t is row t < sink ? t : sink + t % ring.
struct ListPages {
  std::byte* const* pages = nullptr;  // device
  int32_t lists = 0;
  int32_t page_rows = 0;
  RowFormat format;  // bf16 or f32
  int32_t sink = 0, ring = 0;
};

// Tokens [begin, begin + count) of lists [first_list, first_list + lists), all of one sequence.
struct ClusterBuildWork {
  // Rows of tokens: the store itself, a ring, or a layer's rows on the device. Its lists begin with
  // source_list.
  ListPages source;
  int32_t source_list = 0;
  // The source is beyond the link, or will change: its rows are copied to scratch memory first.
  bool load = true;
  ListPages store;  // rows [begin, begin + count) are written, in cluster order
  // Clusters [first_cluster, first_cluster + clusters): rows [centroid | sum of the values], and
  // behind a page's rows an int32 each, the number of tokens
  // (lab/policies/retroinfer/ops/clusters.h, PagedClusters).
  ListPages index;
  int32_t first_list = 0, lists = 0;
  int32_t begin = 0, count = 0;
  int32_t first_cluster = 0, clusters = 0;
  int32_t segments = 1;  // divides clusters, <= count
  int32_t iterations = 1;
  int32_t* begins = nullptr;  // result [lists][clusters]: a cluster's first row in the store
  int32_t* order = nullptr;   // result [lists][count]: the tokens, from 0, in cluster order
  void* scratch = nullptr;    // ClusterBuildScratchBytes() a list
};

size_t ClusterBuildScratchBytes(const RowFormat& format, int64_t count, int64_t clusters,
                                bool load);

// As lab/policies/common/segmented_kmeans.h: keys centred by their mean; products and sums of
// centred keys in bf16 (the published ones are, too), sums in f64. Results depend on the rows
// alone. Within a cluster rows keep the order of their tokens.
void MakeClusters(Stream& stream, const ClusterBuildWork& work);

// What MakeClusters() found an order for goes to the store in that order; tokens [from, begin) and
// [begin + count, to) of the source, which is not loaded then, stand around it in their own. sms:
// what it may take of the GPU.
struct StoreExtent {
  int32_t from = 0, to = 0;
};
void StoreClusters(Stream& stream, const ClusterBuildWork& work, const StoreExtent& extent,
                   int32_t sms);
inline void StoreClusters(Stream& stream, const ClusterBuildWork& work) {
  constexpr int32_t kLinkSms = 16;
  StoreClusters(stream, work, {work.begin, work.begin + work.count}, kLinkSms);
}

// Takes that back: the rows stand in the order of their tokens again. `source` is the store.
void RestoreTokenOrder(Stream& stream, const ClusterBuildWork& work);

}  // namespace litecache::ops::cuda
