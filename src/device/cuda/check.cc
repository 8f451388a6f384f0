#include "device/cuda/check.h"

#include <fmt/core.h>

#include "device/device_error.h"

namespace litecache {

void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky: the next launch must not report it
  if (error == cudaErrorMemoryAllocation) {
    throw CapacityError(
        "{}: the GPU is out of memory: lower the memory budget, the context or the batch", call);
  }
  throw DeviceError(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace litecache
