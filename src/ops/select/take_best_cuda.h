// TakeBest on GPUs with clusters.
#pragma once

#include "ops/select/top_k_chain.cuh"

namespace litecache::ops::cuda {

// Returns false if it cannot run; nothing has been launched then.
bool TakeInClusters(CudaStream& stream, const LiteCacheShape& shape, const LiteCacheLayer& layer,
                    const Chain& chain);

}  // namespace litecache::ops::cuda
