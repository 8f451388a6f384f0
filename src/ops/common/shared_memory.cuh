// More dynamic shared memory per block than the 48 KiB that need no attribute.
#pragma once

#include "device/cuda/check.h"

namespace litecache::ops::cuda {

// Allows launches of `kernel` to use as much dynamic shared memory as the device has for a block;
// returns that size. Call it once for each kernel, not at each launch: it changes the kernel, and
// captured graphs that contain it must remain valid.
template <typename Kernel>
size_t AllowSharedMemory(Kernel* kernel) {
  int device = 0, most = 0;
  LC_CUDA(cudaGetDevice(&device));
  LC_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes attributes;
  LC_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  most -= static_cast<int>(attributes.sharedSizeBytes);
  LC_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  return static_cast<size_t>(most);
}

}  // namespace litecache::ops::cuda
