// How much GPU memory this process has allocated itself, to be compared with a memory plan. What
// the driver takes for contexts, kernels and graphs is not included.
#pragma once

#include <cstdint>

namespace litecache {

// Bytes allocated and not freed, on all GPUs.
uint64_t AllocatedGpuMemory();
// Counts memory that is not from CudaDevice::Allocate: bytes allocated, or freed if negative.
void CountGpuMemory(int64_t bytes);

}  // namespace litecache
