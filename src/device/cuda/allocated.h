// How much GPU memory this process has taken itself: what a memory plan is compared with. What the
// driver takes for contexts, kernels and graphs is not among it.
#pragma once

#include <cstdint>

namespace litecache {

// Bytes taken and not given back, of all GPUs.
uint64_t AllocatedGpuMemory();
// Of memory that is not CudaDevice::Allocate's: bytes taken, or below zero given back.
void CountGpuMemory(int64_t bytes);

}  // namespace litecache
