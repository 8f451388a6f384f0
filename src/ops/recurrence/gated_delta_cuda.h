// ops/recurrence/gated_delta.h for the sequences of a step on a GPU, whose states are found by
// their page tables.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/recurrence/gated_delta.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// The state of a sequence's layer is page `list` of the first block of table `table`:
// step.sequences[i].pages[table][list]. convolved: scratch [T, channels] f32, which does not
// overlap the inputs. Nothing but addresses that do not change between replays is read on the host,
// so the operation can be recorded. step.max_rows == 1: decode rows.
void GatedDelta(Stream& stream, const StepView& step, TableId table, int64_t list,
                const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                const GatedDeltaInputs& in, const MatrixView& convolved, const MatrixView& out);

}  // namespace litecache::ops::cuda
