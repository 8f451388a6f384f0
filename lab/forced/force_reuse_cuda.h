// lab/forced/force_reuse.h in a step of policy litecache: a small kernel at its beginning, and
// three in parallel with each selection.
#pragma once

#include "lab/forced/force_reuse.h"
#include "lab/namespaces.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::lab::ops::cuda {

// Thresholds of all layers, in device memory.
struct ForcedThresholds {
  const float* table = nullptr;        // [steps][heads], of lookups
  const float* check_table = nullptr;  // the same of checks
  int32_t steps = 0;
  int32_t heads = 0;  // layers * kv_heads
  int32_t kv_heads = 0;
  int32_t sequences = 0;     // room in the results, [layers][sequences][kv_heads]
  float* lookups = nullptr;  // LiteCacheLayer::tau
  float* checks = nullptr;
};

// Sets the thresholds of the step's sequences to those of the forced steps that they are at.
void ForceThresholds(Stream& stream, const StepView& step, const ForcedThresholds& forced);

// One layer's forced results, in device memory.
struct ForcedLayer {
  const ForcedHead* heads = nullptr;  // [kv_heads] of step 0
  int32_t steps = 0;
  int32_t stride = 0;  // number of heads between two consecutive steps
};

// Selects rows for offloaded heads with refresh == 1, as LiteCacheLayer's selected and
// selected_count. scratch: ForceScratchBytes.
void ForceOverlap(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const ForcedLayer& forced, int32_t* selected,
                  int32_t* selected_count, void* scratch);
size_t ForceScratchBytes(const LiteCacheShape& shape, int64_t capacity, int64_t max_context);

}  // namespace litecache::lab::ops::cuda
