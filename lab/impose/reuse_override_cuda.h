// ReuseOverride on a GPU (lab/impose/impose_reuse_cuda.h has its kernels).
#pragma once

#include <memory>

#include "kv/litecache/result_override_cuda.h"
#include "lab/impose/imposed_reuse.h"

namespace litecache {
class CudaDevice;
}

namespace litecache::kv {

std::unique_ptr<const CudaResultOverride> CreateCudaReuseOverride(CudaDevice& device,
                                                                  const ImposedReuse& reuse);

}  // namespace litecache::kv
