// New tokens' rows into their tables, and rows between tables.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Row [k | v] of every new token of every sequence into `table` (its device format bf16 or f32, or
// fp8/int8 with scales in them or apart, or int4), for the heads the table has. k, v [T, kv_heads *
// head_dim] f32 (k after RoPE), or bf16 where the table is (append_rows_cuda.h); device memory. A
// table in host memory is written through the link: whole rows, coalesced.
void AppendRows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                const MatrixView& k, const MatrixView& v);

// Tokens [begin, end) of every sequence from one table to the other, converting between any two
// formats, for the heads both have; begin and end as `range` says:
//   kPast     [0, past)                 what earlier chunks of a prompt have stored, for staging
//   kLeaving  [stored, past + rows - recent)   what leaves the recent window: spill
//   kRing     [stored, past)            what the ring holds and the store does not: before a chunk
//   kNew      [past, past + rows)       what the step has appended
// sms: what it may take of the GPU where other operations run beside it; 0: as much as it likes.
struct RowRange {
  enum Kind : int32_t { kPast, kLeaving, kRing, kNew } kind = kPast;
  int32_t recent = 0;
};
void CopyRows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& from,
              const RowTable& to, const RowRange& range, int32_t sms = 0);

}  // namespace litecache::ops::cuda
