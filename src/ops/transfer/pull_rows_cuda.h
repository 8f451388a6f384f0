// Transfers rows over the link by kernels that read mapped host memory.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Transfer engine gpu-pull: copies rows moved_positions of the store (mapped host memory) into
// moved_slots, head after head, with at most `blocks` blocks of 128 threads (32 and more reach the
// link's rate, lab/notes/gpu/transfer.md). Rows of fp8/int8 are dequantized on arrival, or kept as
// codes, with the scales from table kScales (`codes`). Tokens that are not stored are in the ring
// and are never transferred.
void PullRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, int32_t blocks);
// In a fill: copies the sink and recent rows [0, min(sink, stored)) and [RecentBegin(past), stored)
// from the store into their fixed slots.
void FillFixed(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const int32_t* fill);

}  // namespace litecache::ops::cuda
