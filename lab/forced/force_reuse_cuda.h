// lab/forced/force_reuse.h in a step of policy litecache: a small kernel after a lookup, two in
// parallel with a selection and one after it, only in measurements.
#pragma once

#include "device/cuda/step_condition.h"
#include "lab/forced/force_reuse.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

// One layer's forced results, in device memory.
struct ForcedLayer {
  const ForcedHead* heads = nullptr;  // [kv_heads] of step 0
  int32_t steps = 0;
  int32_t stride = 0;  // number of heads between two consecutive steps
};

// Call after Lookup: sets refresh, the heads' pending flags and the hit counters to the forced
// values. Labels keep the lookup's values. Heads without a lookup (AllFit) are unchanged. Asks for
// the operations of `condition` if a head refreshes.
void ForceHits(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const ForcedLayer& forced,
               const StepCondition& condition = {});

// Call before ForceOverlap, in any order with the selection: writes the positions that have a slot,
// for offloaded heads with refresh == 1, to scratch [ForceScratchBytes].
void MarkCached(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const ForcedLayer& forced, void* scratch);
size_t ForceScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context);

// Call after a selection that is not a fill: replaces `selected` of offloaded heads with refresh ==
// 1. scratch: as written by MarkCached.
void ForceOverlap(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const ForcedLayer& forced, void* scratch);

}  // namespace litecache::ops::cuda
