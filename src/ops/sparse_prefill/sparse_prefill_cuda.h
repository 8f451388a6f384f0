// ops/sparse_prefill/sparse_prefill.h on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/kept_blocks_cuda.h"
#include "ops/attention/softmax.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Whether rows of this format can be chosen: bf16, head_dim a multiple of 8.
bool SparsePrefillServes(const RowFormat& format);

// Bytes of device memory that ChooseBlocks takes for a chunk of `rows` tokens at the end of a
// context of `context` tokens.
size_t SparsePrefillBytes(int64_t kv_heads, int64_t q_heads, int64_t head_dim, int64_t rows,
                          int64_t context);

// Chooses the blocks of the one sequence in `step`, whose max_rows and max_context are exact, for
// the query heads whose KV heads are in `table`; the table holds the rows of the new tokens
// already. q as PagedAttention takes it; softmax: without regard to sinks. whole_end: the last
// block of queries keeps all rows. The result is in `memory`, which has SparsePrefillBytes.
// Enqueues 4 operations for every KV head.
DeviceKeptBlocks ChooseBlocks(Stream& stream, const StepView& step, int64_t kv_heads,
                              const RowTable& table, std::span<const int32_t> heads,
                              const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                              double mass, bool whole_end, void* memory);

}  // namespace litecache::ops::cuda
