// The decisions of policy litecache on the device: lookup, selection, slots, transfer. Every
// operation covers one layer's (sequence, KV head) pairs and reads what the one before has written;
// the host sees nothing of it.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "litecache/kv_options.h"
#include "ops/reuse/code_slots.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/reuse/slot_windows.h"
#include "ops/select/bounds_select.h"
#include "ops/select/hash_select.h"
#include "ops/select/projection_select.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Sizes of policy litecache (kv/litecache/shape.h), as kernels need them.
struct LiteShape {
  int32_t kv_heads = 0, group = 0, head_dim = 0;
  SlotWindows<int32_t> windows;
  int32_t cache_begin = 0;  // first slot of cached rows
  int32_t max_rows = 0;     // most rows any head selects: windows.Rows(max_context)
  int32_t labels_a_page = 0;
};

// Per KV head of all sequences, accumulated by the kernels with atomics.
struct DeviceHeadCounters {
  unsigned long long lookups, hits, rows_selected, rows_moved;
  double similarity;
};

// One layer's constants and work arrays, device memory; index of a pair: sequence * kv_heads +
// head.
struct LiteLayer {
  RowTable slots, store, resident;
  CodeSlots codes;                    // of the slots' cached rows, where they are codes
  RowTable metadata;                  // lists and list_of_head; page_rows: tokens a page covers
  const float* importance = nullptr;  // [q_heads]
  const float* tau = nullptr;         // [kv_heads]
  const int32_t* dense = nullptr;     // [kv_heads]: attends all rows, selects nothing
  DeviceHeadCounters* counters = nullptr;  // [kv_heads]
  // Work.
  int32_t* refresh = nullptr;          // [pairs] 1: the head's rows are selected anew
  int32_t* selected = nullptr;         // [pairs][max_rows] positions, ascending
  int32_t* selected_count = nullptr;   // [pairs]
  int32_t* moved_positions = nullptr;  // [pairs][max_rows]
  int32_t* moved_slots = nullptr;      // [pairs][max_rows]
  int32_t* moved_count = nullptr;      // [pairs]
};

// ops/reuse/qsac_lookup.h for every offloaded head of every sequence. q [capacity rows or more,
// q_heads * head_dim] f32. Writes refresh, counters; on a miss label := q and pending := 1 (pending
// heads miss always). Where all candidates of a sequence fit into its rows (kv: Shape::AllFit): no
// lookup; label := q, window_begin := RecentBegin(n), and if the number of candidates has grown,
// the row of the token that left the recent window goes from its ring slot into the next cached
// slot (AppendSlot; idempotent where the step is run again), as codes where that has codes: those
// that the store has for it (CopyRows).
void Lookup(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
            Aggregation aggregation, const MatrixView& q);

// The first decode step after a prompt: refresh := 1 for every offloaded head of sequences whose
// fill[sequence] is set (0 for others), slots emptied, window_begin := RecentBegin(past); q is read
// from the labels by the selection that follows (labels hold the prompt's last queries).
void BeginFill(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
               const int32_t* fill);

// Where a selection's queries come from.
struct SelectQuery {
  const MatrixView* q = nullptr;  // [rows, q_heads * head_dim] f32; null: offloaded heads' labels
  float scale = 0;
  // Candidates of n = past + 1 tokens; of a fill n = past.
  bool fill = false;
};

// Scratch a selection needs (scores, histograms), bytes.
size_t SelectScratchBytes(const LiteShape& shape, int64_t capacity, int64_t max_context);

// Top-k positions (ops/select/selection.h's order and ties) of every offloaded head with refresh ==
// 1 and, unless fill or q is null, of every resident head that is not dense and whose candidates do
// not all fit, into selected/selected_count. Where candidates <= k: all of them. Heads with nothing
// to select: count 0. One a retriever; metadata as its CPU twin lays it out.
void HashSelect(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const HashFormat& format, const float* weights,
                const SelectQuery& query, void* scratch);
void ExactSelect(Stream& stream, const StepView& step, const LiteShape& shape,
                 const LiteLayer& layer, const SelectQuery& query, void* scratch);
void BoundsSelect(Stream& stream, const StepView& step, const LiteShape& shape,
                  const LiteLayer& layer, const BoundsFormat& format, const SelectQuery& query,
                  void* scratch);
void ProjectionSelect(Stream& stream, const StepView& step, const LiteShape& shape,
                      const LiteLayer& layer, const ProjectionFormat& format, const float* basis,
                      const SelectQuery& query, void* scratch);

// Keys into metadata, for heads that have a metadata list. Either new keys k [T, kv_heads *
// head_dim] f32 at positions [past, past + rows) (a prompt's chunk), or the keys of tokens in the
// ring of the slots or in resident pages at positions [stored, past + 1 - recent) (decode: k null).
// weights [kv_heads][head_dim][bits], basis [kv_heads][head_dim][basis_stride] of this layer, f32.
void HashEncode(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const HashFormat& format, const float* weights,
                const MatrixView* k);
void BoundsEncode(Stream& stream, const StepView& step, const LiteShape& shape,
                  const LiteLayer& layer, const BoundsFormat& format, const MatrixView* k);
void ProjectionEncode(Stream& stream, const StepView& step, const LiteShape& shape,
                      const LiteLayer& layer, const ProjectionFormat& format, const float* basis,
                      const MatrixView* k);

// kv::UpdateSlots for every head with refresh == 1: positions in `selected` become the attended
// rows; writes moved_*, HeadState (used, update, window_begin := RecentBegin of the selection's n,
// pending := 0), slots' positions and updates, counters (rows_selected, rows_moved). delta as
// there.
size_t UpdateSlotsScratchBytes(const LiteShape& shape, int64_t capacity, int64_t max_context);
void UpdateSlots(Stream& stream, const StepView& step, const LiteShape& shape,
                 const LiteLayer& layer, bool delta, bool fill, void* scratch);

// Transfer engine gpu-pull: rows of moved_positions of the store (mapped host memory) into
// moved_slots, head after head, on `blocks` blocks of 128 threads at most (32 and more run at the
// link's rate, lab/notes/gpu/transfer.md). Rows of fp8/int8 are expanded as they land, or
// kept as codes, with the scales from table kScales (`codes`). Tokens not stored are in the ring:
// never asked.
void PullRows(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
              int32_t blocks);
// In a fill the sink and recent rows [0, min(sink, stored)) and [RecentBegin(past), stored) from
// the store into their fixed slots.
void FillFixed(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
               const int32_t* fill);

// Labels := the last query of every sequence's rows, for offloaded heads (a prompt's chunk).
void KeepLastQueries(Stream& stream, const StepView& step, const LiteShape& shape,
                     const LiteLayer& layer, const MatrixView& q);

}  // namespace litecache::ops::cuda
