// Attention over rows that a policy lists, and the ranges that it chooses them from. Pairs are
// sequence * kv_heads + head; all arrays are device memory whose addresses are the same in every
// replay of a recording.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Candidates [begin, end) of a sequence, the same for all its heads, and how many are wanted; all
// of them where k >= end - begin.
struct SelectRange {
  int32_t begin = 0, end = 0, k = 0;
};

// What the heads of a layer attend: rows [0, leading) of the head's list of a table, then the rows
// listed. A table whose pages are those of several things side by side makes a row of any of them
// an index.
struct RowLists {
  const int32_t* leading = nullptr;  // [pairs]; null: none
  const int32_t* rows = nullptr;     // [pairs][max_rows]
  const int32_t* count = nullptr;    // [pairs], of `rows`; null: none
  int32_t max_rows = 0;
};

// Attention of the query of every sequence (one row each) over the rows listed, as HybridAttention
// otherwise. Heads without any row: out and log_sums are left alone. log_sums: null, or f32
// [rows][q_heads]: the natural logarithm of the sum of exp(scale q.k), for results to be merged by.
void ListedAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     const RowLists& lists, const MatrixView& q, int64_t q_heads, float scale,
                     const MatrixView& out, float* log_sums, void* scratch);

}  // namespace litecache::ops::cuda
