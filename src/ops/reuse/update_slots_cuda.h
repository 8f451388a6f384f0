// Which rows a head has in which slots, on a GPU: preparation of a fill, and the update after any
// selection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// For the first decode step after a prompt: refresh := 1 for every offloaded head of sequences with
// fill[sequence] != 0 (0 for others), slots are emptied, window_begin := RecentBegin(past). The
// selection that follows reads its queries from the labels, which hold the prompt's last queries.
void BeginFill(Stream& stream, const StepView& step, const LiteCacheShape& shape,
               const LiteCacheLayer& layer, const int32_t* fill);

// kv::UpdateSlots for every head with refresh == 1: positions in `selected` become the attended
// rows. Writes moved_*, HeadState (used, update, window_begin := RecentBegin of the selection's n,
// pending := 0), slots' positions and updates, and counters (rows_selected, rows_moved). delta as
// in kv::UpdateSlots.
size_t UpdateSlotsScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context);
void UpdateSlots(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                 const LiteCacheLayer& layer, bool delta, bool fill, void* scratch);

}  // namespace litecache::ops::cuda
