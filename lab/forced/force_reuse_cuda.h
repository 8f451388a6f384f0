// lab/forced/force_reuse.h in a step of policy litecache: a small kernel after a lookup, two
// beside a selection and one after it, of measurements only.
#pragma once

#include "lab/forced/force_reuse.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

// One layer's part of what is forced, device memory.
struct ForcedLayer {
  const ForcedHead* heads = nullptr;  // [kv_heads] of step 0
  int32_t steps = 0;
  int32_t stride = 0;  // heads between a step and the next
};

// After Lookup: refresh, the heads' pending flags and the counters' hits become those that are
// forced. Labels stay as the lookup left them. Heads that were not looked up (AllFit) are left.
void ForceHits(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const ForcedLayer& forced);

// Before ForceOverlap, whatever is selected: the positions that have a slot, of offloaded heads
// with refresh == 1, into scratch [ForceScratchBytes].
void MarkCached(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const ForcedLayer& forced, void* scratch);
size_t ForceScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context);

// After a selection that is no fill: `selected` of offloaded heads with refresh == 1. scratch: as
// MarkCached has left it.
void ForceOverlap(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const ForcedLayer& forced, void* scratch);

}  // namespace litecache::ops::cuda
