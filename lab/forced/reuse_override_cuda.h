// ReuseOverride on a GPU (kernels: lab/forced/force_reuse_cuda.h).
#pragma once

#include <memory>

#include "kv/litecache/result_override_cuda.h"
#include "lab/forced/forced_reuse.h"
#include "lab/namespaces.h"

namespace litecache {
class CudaDevice;
}

namespace litecache::lab {

std::unique_ptr<CudaResultOverride> CreateCudaReuseOverride(CudaDevice& device,
                                                            const ForcedReuse& reuse);

}  // namespace litecache::lab
