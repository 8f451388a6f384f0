// The implementation of cuda_devices.h in builds without CUDA.
#include "base/error.h"
#include "device/caller_stream.h"
#include "device/cuda/allocated.h"
#include "device/cuda/cuda_devices.h"
#include "device/keep_pinned.h"

namespace litecache {

CudaDevices FindCudaDevices(int) { return {{}, "this program was built without CUDA"}; }

std::string CudaOfBuild() { return ""; }

uint64_t AllocatedGpuMemory() { return 0; }
void CountGpuMemory(int64_t) {}

std::unique_ptr<CallerStream> OrderWithCaller(Device&, Stream&, void*) {
  throw Unsupported("device 'cuda': this program was built without CUDA");
}

KeepsCurrentGpu::KeepsCurrentGpu() = default;
KeepsCurrentGpu::~KeepsCurrentGpu() = default;

KeepPinned::KeepPinned() = default;
KeepPinned::~KeepPinned() = default;
void KeepPinned::Drop() {}
size_t KeepPinned::bytes() { return 0; }

}  // namespace litecache
