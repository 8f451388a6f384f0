// Every size of policy retroinfer, from the layout and the options: clusters and zones of a prompt
// and of what is generated, rows and blocks on the device, what a sequence costs.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/layout.h"
#include "lab/policies/retroinfer/ops/clusters.h"
#include "lab/policies/retroinfer/options.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

// What an index gains when a run of tokens is clustered.
struct WaveGrowth {
  int64_t clusters = 0;
  int64_t segments = 1;   // equal parts that are clustered apart before the last iteration
  int64_t nprobe = 0;     // clusters a query attends exactly
  int64_t estimated = 0;  // clusters it estimates
};

// A sequence of n tokens, i of them indexed: sink = [0, sink), index = [sink, sink + i), the rest
// is not clustered yet. Sink and rest are the steady zone, at most sink + recent + update rows.
struct RetroShape {
  RetroShape(const Layout& layout, const KvOptions& options, DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t group = 0;  // query heads a KV head
  int64_t lists = 0;  // (layer, KV head) pairs
  RetroInferOptions o;
  int64_t sink = 0;
  int64_t recent = 0;

  PageLayout pages;  // of both pools
  ops::RowFormat format;
  int64_t page_clusters = 0;    // clusters a page of the index holds
  int64_t page_block_rows = 0;  // rows of whole blocks a page of the block cache holds
  int64_t cluster_blocks = 0;   // blocks of a cluster of cluster_tokens
  WaveGrowth update;            // of update_tokens generated tokens
  bool on_gpu = false;

  int64_t List(int64_t layer, int64_t head) const { return layer * layout.kv_heads + head; }
  TableShape StoreTable() const { return pages.Table(lists); }
  TableShape IndexTable() const { return {lists, page_clusters, 0}; }

  // Prompts below this are not clustered.
  int64_t least_indexed() const { return sink + recent + o.update_tokens; }
  // Sequences up to this have nothing to cluster.
  int64_t most_steady() const { return sink + o.update_tokens; }
  // Of a prompt of n >= least_indexed() tokens: [sink, n - recent) is clustered.
  WaveGrowth Prompt(int64_t n) const;

  // ---- steady zone ----
  int64_t ring() const { return recent + o.update_tokens; }
  int64_t SteadySlot(int64_t token) const { return token < sink ? token : sink + token % ring(); }
  int64_t SteadyPages(int64_t n) const;

  // ---- block cache, execution buffer: blocks of nprobe clusters ----
  int64_t CacheBlocks(int64_t nprobe) const;
  int64_t BufferBlocks(int64_t nprobe) const;
  int64_t PagesOfBlocks(int64_t blocks) const {
    const int64_t a_page = page_block_rows / o.block_tokens;
    return (blocks + a_page - 1) / a_page;
  }

  // ---- room: at least what any sequence of n tokens needs, however many of them were its prompt;
  // never falls as n grows, and 0 where nothing can be indexed yet ----
  int64_t ClusterRoom(int64_t n) const;
  int64_t NprobeRoom(int64_t n) const;
  int64_t IndexPages(int64_t n) const { return IndexTable().BlocksFor(ClusterRoom(n)); }
  int64_t CachePages(int64_t n) const;
  int64_t BufferPages(int64_t n) const;

  // Pages a KV head: a GPU attends a prompt's chunk in two buffers of a layer's rows each.
  static constexpr int64_t kStagingBuffers = 2;
  int64_t StagingPages(int64_t n) const { return on_gpu ? pages.BlocksFor(n) : 0; }

  // Pages of a sequence of n tokens that decodes are these, exactly, and on a GPU those of its
  // prompts beside them.
  TierBytes BytesFor(int64_t tokens) const { return ForkBytesFor(0, tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const;

  // Memory beside the pools: a cluster's descriptor, on the host (block_cache.h,
  // wave_index_cuda.h).
  static constexpr uint64_t kDescriptorBytes = 18;
};

}  // namespace litecache::kv
