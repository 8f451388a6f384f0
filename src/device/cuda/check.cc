#include "device/cuda/check.h"

#include <fmt/format.h>

#include "device/device_error.h"

namespace litecache {

void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // told here; where it is not sticky, the next launch must not be told again
  if (error == cudaErrorMemoryAllocation) {
    throw CapacityError(
        "{}: the GPU is out of memory: lower the memory budget, the context or the batch", call);
  }
  throw DeviceError(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace litecache
