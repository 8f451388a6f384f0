// lab/forced/force_rows.h in a step of a policy that selects at every step (listed_cuda.h): one
// small kernel after a selection, of measurements only.
#pragma once

#include "lab/forced/force_rows.h"
#include "ops/attention/listed_cuda.h"

namespace litecache::ops::cuda {

// One layer's part of what is forced, device memory.
struct ForcedRows {
  const uint32_t* bits = nullptr;  // of step 0: [kv_heads][words]
  int32_t words = 0;               // of a head, of whole blocks
  int32_t steps = 0;
  int64_t stride = 0;  // words between a step and the next
};

// selected [pairs][max_selected]: each pair's selected_count rows become as many of those that are
// forced as lie in its range, ascending, and the rest is spread over the others.
void ForceRows(Stream& stream, const StepView& step, int64_t kv_heads, const SelectRange* ranges,
               const ForcedRows& forced, int32_t* selected, const int32_t* selected_count,
               int64_t max_selected);

}  // namespace litecache::ops::cuda
