#include "device/count_allocations.h"

#include <cuda_runtime_api.h>

#include <atomic>

namespace {
std::atomic<int64_t> allocations = 0;
std::atomic<bool> refuse_managed = false;
}  // namespace

// The linker's --wrap=NAME calls __wrap_NAME for NAME and makes NAME available as __real_NAME.
extern "C" {

cudaError_t __real_cudaMalloc(void** memory, size_t bytes);
cudaError_t __real_cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t __real_cudaMallocManaged(void** memory, size_t bytes, unsigned flags);
cudaError_t __real_cudaHostRegister(void* memory, size_t bytes, unsigned flags);

cudaError_t __wrap_cudaMalloc(void** memory, size_t bytes) {
  ++allocations;
  return __real_cudaMalloc(memory, bytes);
}
cudaError_t __wrap_cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  ++allocations;
  return __real_cudaHostAlloc(memory, bytes, flags);
}
cudaError_t __wrap_cudaMallocManaged(void** memory, size_t bytes, unsigned flags) {
  ++allocations;
  if (refuse_managed) return cudaErrorMemoryAllocation;
  return __real_cudaMallocManaged(memory, bytes, flags);
}
cudaError_t __wrap_cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  ++allocations;
  return __real_cudaHostRegister(memory, bytes, flags);
}

}  // extern "C"

namespace litecache::testing {

int64_t Allocations() { return allocations; }
void RefuseManaged(bool refuse) { refuse_managed = refuse; }

}  // namespace litecache::testing
