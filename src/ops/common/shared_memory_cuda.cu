#include <map>
#include <mutex>
#include <utility>

#include "device/cuda/check.h"
#include "ops/common/shared_memory.cuh"

namespace litecache::ops::cuda {
namespace {

size_t Allow(const void* kernel, int device) {
  int most = 0;
  LC_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes attributes;
  LC_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  most -= static_cast<int>(attributes.sharedSizeBytes);
  LC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  return static_cast<size_t>(most);
}

}  // namespace

size_t AllowSharedMemoryOf(const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, size_t> allowed;
  int device = 0;
  LC_CUDA(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto [known, is_new] = allowed.try_emplace({kernel, device});
  if (is_new) known->second = Allow(kernel, device);
  return known->second;
}

}  // namespace litecache::ops::cuda
