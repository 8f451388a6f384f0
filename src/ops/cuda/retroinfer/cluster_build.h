// RetroInfer's segmented spherical k-means on the device: runs of tokens become clusters, whose
// rows end in the host store in the order of their clusters (kv/retroinfer/README.md, "Index").
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "ops/rows/row_format.h"

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
  ListPages source;  // rows of tokens: the store itself, or a ring
  ListPages store;   // rows [begin, begin + count) are written, in cluster order
  // Clusters [first_cluster, first_cluster + clusters): rows [centroid | sum of the values], and
  // behind a page's rows an int32 each, the number of tokens (ops/cluster/clusters.h,
  // PagedClusters).
  ListPages index;
  int32_t first_list = 0, lists = 0;
  int32_t begin = 0, count = 0;
  int32_t first_cluster = 0, clusters = 0;
  int32_t segments = 1;  // divides clusters, <= count
  int32_t iterations = 1;
  int32_t* begins = nullptr;  // result [lists][clusters]: a cluster's first row in the store
  void* scratch = nullptr;    // ClusterBuildScratchBytes() a list
};

size_t ClusterBuildScratchBytes(const RowFormat& format, int64_t count, int64_t clusters);

// As kv/retroinfer/segmented_kmeans.h: keys centred by their mean; products of bf16 (the published
// ones are, too), sums in f64. Results depend on the rows alone. Within a cluster rows keep the
// order of their tokens. `source` is read before `store` is written.
void BuildClusters(Stream& stream, const ClusterBuildWork& work);

}  // namespace litecache::ops::cuda
