// lab/impose/impose_reuse.h in a step of policy litecache: a small kernel after a lookup, two
// beside a selection and one after it, of measurements only.
#pragma once

#include "lab/impose/impose_reuse.h"
#include "ops/slots/lite_layer_cuda.h"

namespace litecache::ops::cuda {

// One layer's part of what is imposed, device memory.
struct ImposedLayer {
  const ImposedHead* heads = nullptr;  // [kv_heads] of step 0
  int32_t steps = 0;
  int32_t stride = 0;  // heads between a step and the next
};

// After Lookup: refresh, the heads' pending flags and the counters' hits become those that are
// imposed. Labels stay as the lookup left them. Heads that were not looked up (AllFit) are left.
void ImposeHits(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const ImposedLayer& imposed);

// Before ImposeOverlap, whatever is selected: the positions that have a slot, of offloaded heads
// with refresh == 1, into scratch [ImposeScratchBytes].
void MarkCached(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const ImposedLayer& imposed, void* scratch);
size_t ImposeScratchBytes(const LiteShape& shape, int64_t capacity, int64_t max_context);

// After a selection that is no fill: `selected` of offloaded heads with refresh == 1. scratch: as
// MarkCached has left it.
void ImposeOverlap(Stream& stream, const StepView& step, const LiteShape& shape,
                   const LiteLayer& layer, const ImposedLayer& imposed, void* scratch);

}  // namespace litecache::ops::cuda
