// UpdateSlots where a head has no more slots than rows: whatever is not selected again makes room.
#pragma once

#include "ops/slots/lite_layer_cuda.h"

namespace litecache::ops::cuda {

size_t SwapSlotsScratchBytes(const LiteShape& shape, int64_t capacity, int64_t max_context);
void SwapSlots(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
               bool delta, bool fill, void* scratch);

}  // namespace litecache::ops::cuda
