// Rows over the link by kernels that read mapped host memory.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Transfer engine gpu-pull: rows of moved_positions of the store (mapped host memory) into
// moved_slots, head after head, on `blocks` blocks of 128 threads at most (32 and more run at the
// link's rate, lab/notes/gpu/transfer.md). Rows of fp8/int8 are expanded as they land, or
// kept as codes, with the scales from table kScales (`codes`). Tokens not stored are in the ring:
// never asked.
void PullRows(Stream& stream, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, int32_t blocks);
// In a fill the sink and recent rows [0, min(sink, stored)) and [RecentBegin(past), stored) from
// the store into their fixed slots.
void FillFixed(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const int32_t* fill);

}  // namespace litecache::ops::cuda
