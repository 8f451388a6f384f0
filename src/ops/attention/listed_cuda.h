// Attention over rows listed by a policy, and the ranges that it selects them from. Pairs are
// sequence * kv_heads + head; all arrays are device memory at addresses that stay the same in every
// replay of a recording.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/softmax.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Candidates [begin, end) of a sequence, the same for all its heads, and the number of rows to
// select; all candidates if k >= end - begin.
struct SelectRange {
  int32_t begin = 0, end = 0, k = 0;
};

// The rows that the heads of a layer attend: rows [0, leading) of the head's list of a table, then
// the listed rows. If a table's pages hold several kinds of rows side by side, one index covers
// them all.
struct RowLists {
  const int32_t* leading = nullptr;  // [pairs]; null: none
  const int32_t* rows = nullptr;     // [pairs][max_rows]
  const int32_t* count = nullptr;    // [pairs], lengths of `rows`; null: none
  int32_t max_rows = 0;
};

// Attention of every sequence's query (one row each) over the listed rows, otherwise like
// HybridAttention. For heads without rows, out and log_sums are unchanged. log_sums: null, or f32
// [rows][q_heads]: the natural logarithm of the sum of exp(scale q.k), for merging results. A sink
// is a term of that sum like a row: of the results over disjoint rows that are merged, exactly one
// is given the sinks, and its heads must all have rows.
void ListedAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     const RowLists& lists, const MatrixView& q, int64_t q_heads,
                     const Softmax& softmax, const MatrixView& out, float* log_sums, void* scratch);

}  // namespace litecache::ops::cuda
