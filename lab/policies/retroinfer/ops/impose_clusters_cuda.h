// lab/impose/impose_clusters.h in a step of policy retroinfer: one small kernel after the
// selection, of measurements only.
#pragma once

#include "lab/impose/impose_clusters.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"

namespace litecache::ops::cuda {

// One layer's part of what is imposed, device memory.
struct ImposedClusters {
  const uint16_t* order = nullptr;  // of step 0: [kv_heads][recorded], each cluster once
  int32_t recorded = 0;
  int32_t steps = 0;
  int64_t stride = 0;  // ids between a step and the next
};

// After SelectClusters: as many clusters as each pair chose, of those that are not empty the first
// in the imposed order.
void ImposeClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                    const WaveLayer& layer, const ImposedClusters& imposed);

}  // namespace litecache::ops::cuda
