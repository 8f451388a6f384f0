// RetroInfer's segmented spherical k-means on the device: runs of tokens become clusters, whose
// rows are written to the host store in cluster order (lab/policies/retroinfer/README.md, "Index").
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/common/row_format.h"

namespace litecache::lab::ops::cuda {

// A sequence's lists of rows: row r of list i is in page pages[r / page_rows * lists + i]. With a
// ring, token t is row t < sink ? t : sink + t % ring.
struct ListPages {
  std::byte* const* pages = nullptr;  // device
  int32_t lists = 0;
  int32_t page_rows = 0;
  RowFormat format;  // bf16 or f32
  int32_t sink = 0, ring = 0;
};

// Tokens [begin, begin + count) of lists [first_list, first_list + lists), all from one sequence.
struct ClusterBuildWork {
  // Source of the tokens' rows: the store, a ring, or a layer's rows on the device. Its first list
  // is source_list.
  ListPages source;
  int32_t source_list = 0;
  // Copies the source's rows to scratch memory first, because they are beyond the link or will
  // change.
  bool load = true;
  ListPages store;  // rows [begin, begin + count) are written, in cluster order
  // Clusters [first_cluster, first_cluster + clusters): rows [centroid | sum of the values], and
  // after a page's rows an int32 each, the number of tokens
  // (lab/policies/retroinfer/ops/clusters.h, PagedClusters).
  ListPages index;
  int32_t first_list = 0, lists = 0;
  int32_t begin = 0, count = 0;
  int32_t first_cluster = 0, clusters = 0;
  int32_t segments = 1;  // must divide clusters, <= count
  int32_t iterations = 1;
  int32_t* begins = nullptr;  // result [lists][clusters]: a cluster's first row in the store
  int32_t* order = nullptr;   // result [lists][count]: tokens, from 0, in cluster order
  void* scratch = nullptr;    // ClusterBuildScratchBytes() per list
};

size_t ClusterBuildScratchBytes(const RowFormat& format, int64_t count, int64_t clusters,
                                bool load);

// As in lab/policies/common/segmented_kmeans.h: keys centred by their mean; products and sums of
// centred keys in bf16 (as published), sums in f64. Results depend only on the rows. Within a
// cluster rows keep token order.
void MakeClusters(Stream& stream, const ClusterBuildWork& work);

// The order that MakeClusters() has found is used to store the rows; tokens [from, begin) and
// [begin + count, to) of the source, which is not loaded in this case, are stored around them in
// token order. sms: maximum number of SMs to use.
struct StoreExtent {
  int32_t from = 0, to = 0;
};
void StoreClusters(Stream& stream, const ClusterBuildWork& work, const StoreExtent& extent,
                   int32_t sms);
inline void StoreClusters(Stream& stream, const ClusterBuildWork& work) {
  constexpr int32_t kLinkSms = 16;
  StoreClusters(stream, work, {work.begin, work.begin + work.count}, kLinkSms);
}

// Reverts this: brings the rows back into token order. `source` is the store.
void RestoreTokenOrder(Stream& stream, const ClusterBuildWork& work);

}  // namespace litecache::lab::ops::cuda
