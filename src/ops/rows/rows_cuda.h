// Stores new tokens' rows into their tables, and copies rows between tables.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Writes row [k | v] of every new token of every sequence into `table` (format bf16 or f32, or
// fp8/int8 with scales in the rows or apart, or int4), for the heads in the table. k, v [T,
// kv_heads * head_dim] f32 (k after RoPE), or bf16 if the table is bf16 (append_rows_cuda.h);
// device memory. A table in host memory is written over the link: whole rows, coalesced.
void AppendRows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                const MatrixView& k, const MatrixView& v);

// Copies tokens [begin, end) of every sequence from one table to the other, converting between any
// two formats, for the heads in both; begin and end by `range`:
//   kPast     [0, past)                 rows of a prompt's earlier chunks, for staging
//   kLeaving  [stored, past + rows - recent)   rows that leave the recent window: spill
//   kRing     [stored, past)            rows in the ring that are not in the store: before a chunk
//   kNew      [past, past + rows)       rows that the step has appended
// sms: a limit of the SMs to use, if other operations run at the same time; 0: no limit.
struct RowRange {
  enum Kind : int32_t { kPast, kLeaving, kRing, kNew } kind = kPast;
  int32_t recent = 0;
};
void CopyRows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& from,
              const RowTable& to, const RowRange& range, int32_t sms = 0);

}  // namespace litecache::ops::cuda
