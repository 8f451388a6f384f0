// UpdateSlots for heads that have no more slots than rows: every slot that is not selected again
// becomes free.
#pragma once

#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

size_t SwapSlotsScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context);
void SwapSlots(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, bool delta, bool fill, void* scratch);

}  // namespace litecache::ops::cuda
