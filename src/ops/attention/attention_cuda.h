// Attention over paged rows on a GPU: causal over a whole table, and hybrid over the rows that a
// head keeps. "The sink" of a table or of slots are a sequence's first rows; Softmax::sinks are not
// rows.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/kept_blocks_cuda.h"
#include "ops/attention/softmax.h"
#include "ops/slots/code_slots.h"
#include "ops/slots/slot_windows.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Bytes of scratch for the attention of a step of at most `sequences` sequences of one row each,
// and of short chunks (partial results of the split context).
size_t AttentionScratchBytes(int64_t sequences, int64_t q_heads, int64_t head_dim);

// Causal attention of every new token over its sequence's rows [0, past + i], for the heads in
// `table`; outputs of other heads are unchanged. Rows of the new tokens must be in the table
// already. q [T, q_heads * head_dim] f32; out has the same shape, bf16 or f32. step.max_rows == 1:
// the context is split over blocks (flash decoding); if `table` is kResident, rows before `past`
// must not be written in this step, since they may be read while earlier kernels still run. The
// same for chunks of few tokens, if there is scratch. Otherwise a tensor core kernel processes
// tiles of queries (bf16 rows). On a batch-invariant stream (device/machine.h), every sequence has
// launches of its own in these two cases; there must be step.capacity of them. kept: not null for a
// chunk of one sequence, of more than one row, that attends only these rows (ops/sparse_prefill);
// bf16.
void PagedAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                    const MatrixView& out, void* scratch, const DeviceKeptBlocks* kept = nullptr);

// Whether chunks are attended as a few tokens are, if there is scratch: the launch is then the same
// over any context.
bool IsShortChunk(const StepView& step, int64_t kv_heads, const RowFormat& format, int64_t q_heads);

// The same for tokens that attend the sink and the last `window` tokens, their own included. The
// ring of `table` holds those of all new tokens. Whether the rows' format allows it: bf16, head_dim
// a multiple of 8.
bool WindowAttentionServes(const RowFormat& format);
void WindowAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     int64_t window, const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                     const MatrixView& out);

// The rows that the heads of a layer attend in a decode step of policy litecache (one row per
// sequence, n = past + 1 tokens; the new token's row is in place). Offloaded heads: sink slots,
// attended cached slots, and ring slots of tokens [WindowBegin(n, window_begin), n). Resident
// heads: all rows if dense[h] or all candidates fit, otherwise sink, selected positions and recent
// rows.
struct HybridTables {
  RowTable slots;   // sink, ring; cached rows begin at cache_begin
  CodeSlots codes;  // of cached rows, if they are codes
  RowTable resident;
  int32_t cache_begin = 0;
  SlotWindows<int32_t> windows;             // without the sink's, which is in `slots`
  const int32_t* dense = nullptr;           // device [kv_heads]: resident heads that attend all
  const int32_t* selected = nullptr;        // device [capacity][kv_heads][max_selected] positions
  const int32_t* selected_count = nullptr;  // device [capacity][kv_heads]
  int32_t max_selected = 0;
  // If not null, device [capacity][kv_heads]: heads with slots attend only where this is 1 if
  // `refreshed`, where it is not 1 otherwise. Resident heads do not belong to the refreshed ones.
  // The other heads' rows of `out` are unchanged.
  const int32_t* refresh = nullptr;
  bool refreshed = false;
};
void HybridAttention(Stream& stream, const StepView& step, int64_t kv_heads,
                     const HybridTables& tables, const MatrixView& q, int64_t q_heads,
                     const Softmax& softmax, const MatrixView& out, void* scratch);

}  // namespace litecache::ops::cuda
