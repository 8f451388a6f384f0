// lab/forced/force_rows.h in a step of a policy that selects at every step (listed_cuda.h): one
// small kernel after a selection, only in measurements.
#pragma once

#include "lab/forced/force_rows.h"
#include "lab/namespaces.h"
#include "ops/attention/listed_cuda.h"

namespace litecache::lab::ops::cuda {

// One layer's forced rows, in device memory.
struct ForcedRows {
  const uint32_t* bits = nullptr;  // of step 0: [kv_heads][words]
  int32_t words = 0;               // per head, for whole blocks
  int32_t steps = 0;
  int64_t stride = 0;  // words between two consecutive steps
};

// selected [pairs][max_selected]: replaces each pair's selected_count rows by the forced ones in
// its range as far as they go, ascending; the others are spread over the remaining positions.
void ForceRows(Stream& stream, const StepView& step, int64_t kv_heads, const SelectRange* ranges,
               const ForcedRows& forced, int32_t* selected, const int32_t* selected_count,
               int64_t max_selected);

}  // namespace litecache::lab::ops::cuda
