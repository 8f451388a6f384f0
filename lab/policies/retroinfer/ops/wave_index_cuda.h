// A decode step over RetroInfer's wave index on the device: which clusters a query wants, which of
// their rows are in the block cache, what the others amount to, and what the cache takes over.
// Every operation covers the (sequence, KV head) pairs of one layer and reads what the one before
// has written (lab/policies/retroinfer/README.md, "A decode step").
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// What a step's sequence has of an index, device memory. Lists: (layer, KV head) pairs.
struct WaveSequence {
  int32_t clusters = 0;       // in use, empty ones among them; 0: nothing is indexed
  int32_t ranked = 0;         // of the best: attended exactly
  int32_t unranked = 0;       // of the next: estimated
  int32_t buffer_blocks = 0;  // that the execution buffer holds
  int32_t indexed_end = 0;    // tokens [sink, indexed_end) are in clusters
  // Pages of a list's rows: the steady zone's, from cache_page on the block cache's, from
  // buffer_page on the execution buffer's.
  int32_t cache_page = 0, buffer_page = 0;
  int32_t cluster_stride = 0, block_stride = 0;
  const int32_t* begins = nullptr;  // [lists][cluster_stride]: a cluster's first row in the store
  // The block cache's tables: a cluster's first block, -1 of one that is not cached; a block's
  // next.
  int32_t* first_block = nullptr;  // [lists][cluster_stride]
  int32_t* next_block = nullptr;   // [lists][block_stride]
};

// Sizes of all layers. page_block_rows: rows of whole blocks in a page of cache or buffer.
struct WaveShape {
  int32_t kv_heads = 0, group = 0, head_dim = 0;
  int32_t sink = 0, ring = 0;
  int32_t block_tokens = 0, page_block_rows = 0;
  int32_t max_clusters = 0;                // of any sequence: strides of logits
  int32_t max_ranked = 0, max_chosen = 0;  // of `ranked`, of ranked + unranked
  int32_t max_rows = 0;                    // of the lists of rows
  bool tell_all = false;                   // the host is told all chosen clusters
};

// What a pair wants.
struct WaveChoice {
  int32_t ranked = 0;     // of `ids`, from the beginning, the best first; the others ascend
  int32_t count = 0;      // of all
  int32_t retrieved = 0;  // of the ranked ones, from the beginning: what the buffer has room for
  int32_t padding = 0;
};

// What a pair's cache takes over, and what it drops.
struct WaveAdmission {
  static constexpr int32_t kDropped = -1;
  int32_t cluster = 0;
  int32_t block = kDropped;  // the first of those it takes
  int32_t source = 0;        // its first block in the execution buffer
  int32_t rows = 0;
};
// Admissions [begins[pair], begins[pair + 1]) of every pair: rows from the buffer to the cache, and
// the tables brought up to date: blocks [links_begin[a], + blocks of a) of `links` are those that
// admission a takes, in the order of its rows.
struct WaveAdmissions {
  int32_t* begins = nullptr;       // [pairs + 2]; the last one: of `links`
  WaveAdmission* items = nullptr;  // [begins[pairs]]
  int32_t* links_begin = nullptr;  // [begins[pairs]]
  int32_t* links = nullptr;
};

// What the device and the host tell each other, in mapped host memory, zero at first. The layers of
// steps are numbered on, so that a replayed step needs nothing from the host.
struct WaveMailbox {
  alignas(64) uint64_t chosen = 0;    // by the device: layers before this number have been told
  alignas(64) uint64_t admitted = 0;  // by the host: of layers before it the admissions are there
  alignas(64) uint64_t fault = 0;     // by the device: waited in vain for this number
};

// One layer's tables and work arrays. Clusters of a list: rows [centroid | sum of the values] of
// `index` and, behind a page's rows, an int32 each, the number of tokens
// (lab/policies/retroinfer/ops/clusters.h).
struct WaveLayer {
  const WaveSequence* sequences = nullptr;  // [capacity], beside the step's
  RowTable index, rows, store;
  float* logits = nullptr;        // [pairs][group][max_clusters], in units of log2 e
  int32_t* ids = nullptr;         // [pairs][max_chosen]
  WaveChoice* choices = nullptr;  // [pairs]
  // What the host is told: choices, and the retrieved clusters (tell_all: all chosen ones). Mapped
  // memory. What it answers.
  WaveChoice* told_choices = nullptr;      // [pairs]
  int32_t* told_ids = nullptr;             // [pairs][max_chosen]
  WaveAdmissions admissions;               // mapped memory
  WaveMailbox* mailbox = nullptr;          // null: nobody is told, nobody answers
  const uint64_t* first_number = nullptr;  // device: of the step's first layer
  int32_t number = 0;                      // of this layer, less that
  int32_t* answered = nullptr;             // device: AdmitClusters() has not waited in vain
  // The answer in device memory: of as much room as the host's.
  WaveAdmissions received;
  // Rows to attend: `leading` of the steady zone, then `listed` of them; of those the ones to
  // fetch, from rows of the store to rows of the list.
  int32_t* leading = nullptr;          // [pairs]
  int32_t* listed = nullptr;           // [pairs][max_rows]
  int32_t* listed_count = nullptr;     // [pairs]
  int32_t* fetched_sources = nullptr;  // [pairs][max_rows]
  int32_t* fetched_targets = nullptr;  // [pairs][max_rows]
  int32_t* fetched_count = nullptr;    // [pairs]
  float* states = nullptr;             // [pairs][kEstimateParts][group][head_dim + 2]
};

// Scores of every cluster that is not empty: sum over the group's query heads of softmax(scale * q
// . centroid). The best `ranked` in order and the next `unranked`, of equal scores the lower
// cluster; of the ranked ones as many are retrieved as the buffer has blocks for. q [rows, q_heads
// * head_dim] f32. scratch: SelectClustersScratchBytes().
size_t SelectClustersScratchBytes(const WaveShape& shape, int64_t capacity);
void SelectClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                    const WaveLayer& layer, const MatrixView& q, float scale, void* scratch);

// The rows of the steady zone and of the retrieved clusters, in this order, whatever is cached; and
// those that have to be fetched into the execution buffer. Tells the host that the layer has
// chosen.
void ListWaveRows(Stream& stream, const StepView& step, const WaveShape& shape,
                  const WaveLayer& layer);

// What the chosen clusters that are not retrieved add to the attention
// (lab/policies/retroinfer/ops/clusters.h, ClusterEstimate), in parts.
inline constexpr int32_t kEstimateParts = 16;
void EstimateClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                      const WaveLayer& layer);
// Merges it into `out` (f32 or bf16), which holds the attention of the exact rows; log_sums
// [rows][q_heads]: natural logarithms of the sums of exp(scale q.k) over these.
void MergeEstimate(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, const float* log_sums, const MatrixView& out);

// Waits for the host's answer to this layer's choices, at most deadline_ns, and does what it says.
// After a wait in vain nothing more is waited for. One thread waits: the GPU is free meanwhile.
void AdmitClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, uint64_t deadline_ns);

}  // namespace litecache::ops::cuda
