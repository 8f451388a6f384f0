// All sizes of policy retroinfer, from the layout and the options: clusters and zones of a prompt
// and of generated tokens, rows and blocks on the device, memory of a sequence.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/layout.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/clusters.h"
#include "lab/policies/retroinfer/options.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::lab {

// Growth of an index when a run of tokens is clustered.
struct WaveGrowth {
  int64_t clusters = 0;
  int64_t segments = 1;   // equal parts, clustered separately before the last iteration
  int64_t nprobe = 0;     // clusters attended exactly per query
  int64_t estimated = 0;  // clusters estimated per query
};

// A sequence of n tokens, i of them indexed: sink = [0, sink), index = [sink, sink + i), and the
// rest is not clustered so far. Sink and rest form the steady zone, at most sink + recent + update
// rows.
struct RetroShape {
  RetroShape(const Layout& layout, const KvOptions& options, DeviceType device = DeviceType::kCpu);

  Layout layout;
  int64_t group = 0;  // query heads per KV head
  int64_t lists = 0;  // (layer, KV head) pairs
  RetroInferOptions o;
  int64_t sink = 0;
  int64_t recent = 0;

  PageLayout pages;  // in both pools
  ops::RowFormat format;
  int64_t page_clusters = 0;    // clusters per page of the index
  int64_t page_block_rows = 0;  // rows of whole blocks per page of the block cache
  int64_t cluster_blocks = 0;   // blocks of a cluster of cluster_tokens
  WaveGrowth update;            // by update_tokens generated tokens
  bool on_gpu = false;

  int64_t List(int64_t layer, int64_t head) const { return layer * layout.kv_heads + head; }
  TableShape StoreTable() const { return pages.Table(lists); }
  TableShape IndexTable() const { return {lists, page_clusters, 0}; }

  // Shorter prompts are not clustered.
  int64_t least_indexed() const { return sink + recent + o.update_tokens; }
  // Sequences up to this length have nothing to cluster.
  int64_t most_steady() const { return sink + o.update_tokens; }
  // For a prompt of n >= least_indexed() tokens: [sink, n - recent) is clustered.
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

  // ---- capacity: enough for any sequence of n tokens, whatever part of them was its prompt; never
  // decreases with n, and 0 if nothing can be indexed ----
  int64_t ClusterRoom(int64_t n) const;
  int64_t NprobeRoom(int64_t n) const;
  int64_t IndexPages(int64_t n) const { return IndexTable().BlocksFor(ClusterRoom(n)); }
  int64_t CachePages(int64_t n) const;
  int64_t BufferPages(int64_t n) const;

  // Pages per KV head: a GPU attends a prompt's chunk in two buffers for a layer's rows.
  static constexpr int64_t kStagingBuffers = 2;
  int64_t StagingPages(int64_t n) const { return on_gpu ? pages.BlocksFor(n) : 0; }

  // The exact pages of a sequence of n tokens that decodes, and on a GPU also those of its prompts.
  TierBytes BytesFor(int64_t tokens) const { return ForkBytesFor(0, tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const;

  // Memory besides the pools: a cluster's descriptor on the host (block_cache.h,
  // wave_index_cuda.h).
  static constexpr uint64_t kDescriptorBytes = 18;
};

}  // namespace litecache::lab
