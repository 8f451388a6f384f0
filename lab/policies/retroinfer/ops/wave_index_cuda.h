// A decode step over RetroInfer's wave index on the device: selects clusters for a query, finds
// their rows in the block cache, estimates the others, and admits rows to the cache. Every
// operation covers the (sequence, KV head) pairs of one layer and reads the results of the previous
// one (lab/policies/retroinfer/README.md, "A decode step").
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/step/step_cuda.h"

namespace litecache::lab::ops::cuda {

// The index data of a step's sequence, in device memory. Lists: (layer, KV head) pairs.
struct WaveSequence {
  int32_t clusters = 0;       // in use, including empty ones; 0: nothing is indexed
  int32_t ranked = 0;         // number of the best clusters: attended exactly
  int32_t unranked = 0;       // number of the next clusters: estimated
  int32_t buffer_blocks = 0;  // capacity of the execution buffer
  int32_t indexed_end = 0;    // tokens [sink, indexed_end) are in clusters
  // Pages of a list's rows: those of the steady zone, from cache_page on those of the block cache,
  // from buffer_page on those of the execution buffer.
  int32_t cache_page = 0, buffer_page = 0;
  int32_t cluster_stride = 0, block_stride = 0;
  const int32_t* begins = nullptr;  // [lists][cluster_stride]: a cluster's first row in the store
  // The block cache's tables: the first block of each cluster, -1 if it is not cached; the
  // successor of each block.
  int32_t* first_block = nullptr;  // [lists][cluster_stride]
  int32_t* next_block = nullptr;   // [lists][block_stride]
};

// Sizes that apply to all layers. page_block_rows: rows of whole blocks in a page of cache or
// buffer.
struct WaveShape {
  int32_t kv_heads = 0, group = 0, head_dim = 0;
  int32_t sink = 0, ring = 0;
  int32_t block_tokens = 0, page_block_rows = 0;
  int32_t max_clusters = 0;                // of any sequence; stride of logits
  int32_t max_ranked = 0, max_chosen = 0;  // of `ranked`, of ranked + unranked
  int32_t max_rows = 0;                    // of the lists of rows
  bool tell_all = false;                   // publish all selected clusters to the host
};

// The clusters selected for a pair.
struct WaveChoice {
  int32_t ranked = 0;     // the first of `ids`, the best first; the others ascend
  int32_t count = 0;      // total
  int32_t retrieved = 0;  // the first of the ranked ones, as many as the buffer has room for
  int32_t padding = 0;
};

// A cluster that a pair's cache admits or evicts.
struct WaveAdmission {
  static constexpr int32_t kDropped = -1;
  int32_t cluster = 0;
  int32_t block = kDropped;  // the first of its blocks
  int32_t source = 0;        // its first block in the execution buffer
  int32_t rows = 0;
};
// Admissions [begins[pair], begins[pair + 1]) of every pair: rows are copied from the buffer to the
// cache, and the tables are updated: blocks [links_begin[a], + blocks of a) of `links` belong to
// admission a, in the order of its rows.
struct WaveAdmissions {
  int32_t* begins = nullptr;       // [pairs + 2]; the last one: of `links`
  WaveAdmission* items = nullptr;  // [begins[pairs]]
  int32_t* links_begin = nullptr;  // [begins[pairs]]
  int32_t* links = nullptr;
};

// Messages between the device and the host, in mapped host memory, initially zero. Layers are
// numbered consecutively over all steps, so that a replayed step needs nothing from the host.
struct WaveMailbox {
  // By the device: layers before this number have been published.
  alignas(64) uint64_t chosen = 0;
  // By the host: admissions of layers before this number are available.
  alignas(64) uint64_t admitted = 0;
  alignas(64) uint64_t fault = 0;  // by the device: timed out while waiting for this number
};

// One layer's tables and work arrays. Clusters of a list: rows [centroid | sum of the values] of
// `index` and, after a page's rows, an int32 each, the number of tokens
// (lab/policies/retroinfer/ops/clusters.h).
struct WaveLayer {
  const WaveSequence* sequences = nullptr;  // [capacity], parallel to the step's
  RowTable index, rows, store;
  float* logits = nullptr;        // [pairs][group][max_clusters], in units of log2 e
  int32_t* ids = nullptr;         // [pairs][max_chosen]
  WaveChoice* choices = nullptr;  // [pairs]
  // Published to the host: choices, and the retrieved clusters (tell_all: all selected ones).
  // Mapped memory. Then the host's answer.
  WaveChoice* told_choices = nullptr;      // [pairs]
  int32_t* told_ids = nullptr;             // [pairs][max_chosen]
  WaveAdmissions admissions;               // mapped memory
  WaveMailbox* mailbox = nullptr;          // null: no messages
  const uint64_t* first_number = nullptr;  // device: number of the step's first layer
  int32_t number = 0;                      // number of this layer, minus that
  int32_t* answered = nullptr;             // device: AdmitClusters() has not timed out
  // The answer in device memory, with the same capacity as the host's.
  WaveAdmissions received;
  // Rows to attend: `leading` rows of the steady zone, then those in `listed`; and which of those
  // are to be fetched, from rows of the store to rows of the list.
  int32_t* leading = nullptr;          // [pairs]
  int32_t* listed = nullptr;           // [pairs][max_rows]
  int32_t* listed_count = nullptr;     // [pairs]
  int32_t* fetched_sources = nullptr;  // [pairs][max_rows]
  int32_t* fetched_targets = nullptr;  // [pairs][max_rows]
  int32_t* fetched_count = nullptr;    // [pairs]
  float* states = nullptr;             // [pairs][kEstimateParts][group][head_dim + 2]
};

// Scores every non-empty cluster: sum over the group's query heads of softmax(scale * q .
// centroid). Selects the best `ranked` in order and the next `unranked`; ties go to the lower
// cluster. Of the ranked ones as many are retrieved as the buffer has blocks for. q [rows, q_heads
// * head_dim] f32. scratch: SelectClustersScratchBytes().
size_t SelectClustersScratchBytes(const WaveShape& shape, int64_t capacity);
void SelectClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                    const WaveLayer& layer, const MatrixView& q, float scale, void* scratch);

// Lists the rows of the steady zone and of the retrieved clusters, in this order, whatever is
// cached, and those that have to be fetched into the execution buffer. Publishes the layer's
// selection to the host.
void ListWaveRows(Stream& stream, const StepView& step, const WaveShape& shape,
                  const WaveLayer& layer);

// The contribution of the selected clusters that are not retrieved to the attention
// (lab/policies/retroinfer/ops/clusters.h, ClusterEstimate), in parts.
inline constexpr int32_t kEstimateParts = 16;
void EstimateClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                      const WaveLayer& layer);
// Merges it into `out` (f32 or bf16), which contains the attention of the exact rows; log_sums
// [rows][q_heads]: natural logarithms of the sums of exp(scale q.k) over these.
void MergeEstimate(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, const float* log_sums, const MatrixView& out);

// Waits for the host's answer to this layer's selection, at most deadline_ns, and carries it out.
// After a timeout, later calls do not wait. One thread waits, so the GPU is free meanwhile.
void AdmitClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, uint64_t deadline_ns);

}  // namespace litecache::lab::ops::cuda
