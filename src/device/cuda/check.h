// Every CUDA call is checked. Included by files of cuda/ folders only.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace litecache {

// Throws CapacityError for lack of memory, otherwise DeviceError, naming the call.
void CheckCuda(cudaError_t error, const char* call);

}  // namespace litecache

#define LC_CUDA(call) ::litecache::CheckCuda((call), #call)
// Use after a kernel launch: reports a wrong configuration; a fault in the kernel is reported by
// the next call that waits.
#define LC_CUDA_LAUNCHED() ::litecache::CheckCuda(cudaGetLastError(), "kernel launch")
