#include "device/cuda/cuda_devices.h"

#include <cuda_runtime.h>

namespace litecache {

CudaDevices FindCudaDevices() {
  CudaDevices found;
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int i = 0; error == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties;
    size_t free = 0;
    size_t total = 0;
    error = cudaGetDeviceProperties(&properties, i);
    if (error == cudaSuccess) error = cudaSetDevice(i);
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
    if (error != cudaSuccess) break;
    // nvcc 13 rejects fmt 9's compile-time format strings, so the name is put together by hand.
    const std::string name = std::string(properties.name) + ", sm_" +
                             std::to_string(properties.major) + std::to_string(properties.minor);
    found.devices.push_back({name, total, free, properties.multiProcessorCount});
  }
  if (error != cudaSuccess) found.why_none = cudaGetErrorString(error);
  if (error == cudaSuccess && count == 0) found.why_none = "no NVIDIA GPU";
  return found;
}

}  // namespace litecache
