// ops/reuse/qsac_lookup.h in a step on a GPU, and updates of the labels that it compares with.
#pragma once

#include "base/matrix_view.h"
#include "device/cuda/step_condition.h"
#include "device/device.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// ops/reuse/qsac_lookup.h for every offloaded head of every sequence. q [capacity rows or more,
// q_heads * head_dim] f32. Writes refresh and counters; on a miss label := q and pending := 1
// (pending heads always miss). If all candidates of a sequence fit into its rows (kv:
// Shape::AllFit): no lookup; label := q, window_begin := RecentBegin(n), and if the number of
// candidates has grown, the row of the token that left the recent window is copied from its ring
// slot to the next cached slot (AppendSlot; idempotent if the step is run again), in slots of codes
// as the codes that the store has for it (CopyRows).
void Lookup(Stream& stream, const StepView& step, const LiteCacheShape& shape,
            const LiteCacheLayer& layer, Aggregation aggregation, const MatrixView& q);

// Of the similarity that a predicted query's choice must have with the actual one.
struct LookupLimits {
  float margin = 0;      // by which the threshold is below the head's
  float least_tau = -1;  // at least, for rows that were chosen in this step
};
// The same with the actual query, after a Lookup() with a predicted one. A sequence whose
// candidates all fit is left as it is. Asks for the operations of `condition` if a head misses.
void VerifyLookup(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, Aggregation aggregation, const MatrixView& q,
                  const LookupLimits& limits, const StepCondition& condition);

// Labels := the last query of every sequence's rows, for offloaded heads (prompt chunks).
void KeepLastQueries(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const MatrixView& q);

}  // namespace litecache::ops::cuda
