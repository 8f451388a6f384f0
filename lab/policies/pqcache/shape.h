// All sizes of policy pqcache, from the layout and the options.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/device.h"
#include "kv/layout.h"
#include "lab/namespaces.h"
#include "lab/policies/pqcache/ops/pq_select.h"
#include "lab/policies/pqcache/options.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::lab::pqcache {

// All rows are in the host store. For an indexed sequence the device keeps, for every (layer, KV
// head): codes, centroids, a window of rows (sink, recent, the new one) and the block cache's rows;
// and one layer's missed rows while it is attended. A sequence that is not indexed, because its
// prompt has no more tokens than there are centroids, has all rows of one layer there while it is
// attended. On a GPU a prompt's chunk is attended in two buffers for a layer's rows.
struct Shape {
  // Throws InvalidArgument for options that the model's heads do not allow.
  Shape(const Layout& layout, const PqCacheOptions& options, DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t group = 0;  // query heads per KV head
  PageLayout pages;   // in both pools
  ops::RowFormat format;
  ops::PqFormat codes;
  int64_t code_tokens = 0;  // tokens per page of codes
  int64_t sink = 0;
  double share = 0;
  int64_t block_tokens = 0;
  int64_t blocks = 0;  // per layer's cache
  bool on_gpu = false;

  int64_t part_dim() const { return layout.head_dim / codes.subspaces; }
  int64_t lists() const { return layout.layers * layout.kv_heads; }
  int64_t List(int64_t layer, int64_t head) const { return layer * layout.kv_heads + head; }
  TableShape RowTable() const { return pages.Table(); }
  TableShape CodeTable() const { return {lists(), code_tokens, 0}; }

  // ---- a prompt of n tokens ----
  bool Indexed(int64_t n) const { return n - sink > codes.clusters(); }
  // Number of recent rows, and also of top rows.
  int64_t Rows(int64_t n) const {
    constexpr double kRounding = 1e-9;  // 0.1 * 30 * 0.5 stays 1.5
    return std::max<int64_t>(
        static_cast<int64_t>(static_cast<double>(n - sink) * share * 0.5 + kRounding), 0);
  }
  // Slots of a window with `recent` recent rows: sink, then a ring of the recent ones and the new
  // one.
  int64_t WindowSlots(int64_t recent) const { return sink + recent + 1; }

  // ---- a sequence of n tokens ----
  int64_t Block(int64_t token) const { return (token - sink) / block_tokens; }
  // Blocks whose tokens are all stored, and how many of them a layer caches.
  int64_t WholeBlocks(int64_t n) const { return n <= sink ? 0 : (n - sink) / block_tokens; }
  int64_t CachedBlocks(int64_t n) const { return std::min(blocks, WholeBlocks(n)); }

  // ---- centroids: f32 [lists][subspaces][clusters][part_dim], in device pages ----
  uint64_t codebook_bytes() const {
    return static_cast<uint64_t>(codes.clusters() * layout.head_dim) * sizeof(float);
  }
  int64_t codebooks_a_page() const {
    return static_cast<int64_t>(pages.page_bytes / codebook_bytes());
  }
  int64_t CodebookPages() const { return (lists() + codebooks_a_page() - 1) / codebooks_a_page(); }

  TierBytes BytesFor(int64_t tokens) const { return ForkBytesFor(0, tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const;
};

}  // namespace litecache::lab::pqcache
