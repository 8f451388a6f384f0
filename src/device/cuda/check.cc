#include "device/cuda/check.h"

#include <fmt/format.h>

#include "device/device_error.h"

namespace litecache {

void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the next call may work
    throw CapacityError(
        "{}: the GPU is out of memory: lower the memory budget, the context or the batch", call);
  }
  throw DeviceError(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace litecache
