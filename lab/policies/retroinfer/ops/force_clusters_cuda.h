// lab/forced/force_clusters.h in a step of policy retroinfer: one small kernel after the selection,
// only in measurements.
#pragma once

#include "lab/forced/force_clusters.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"

namespace litecache::lab::ops::cuda {

// One layer's forced clusters, in device memory.
struct ForcedClusters {
  const uint16_t* order = nullptr;  // for step 0: [kv_heads][recorded], each cluster once
  int32_t recorded = 0;
  int32_t steps = 0;
  int64_t stride = 0;  // ids between two consecutive steps
};

// Call after SelectClusters: replaces each pair's clusters by the same number of non-empty clusters
// that come first in the forced order.
void ForceClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, const ForcedClusters& forced);

}  // namespace litecache::lab::ops::cuda
