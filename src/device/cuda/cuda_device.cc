#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include "base/units.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_devices.h"
#include "device/device_error.h"

namespace litecache {
namespace {

void FreeDevice(void* data, size_t) { cudaFree(data); }

}  // namespace

CudaStream::CudaStream(int device, int sm_count) : sm_count_(sm_count) {
  LC_CUDA(cudaSetDevice(device));
  LC_CUDA(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() { cudaStreamDestroy(handle_); }

void CudaStream::Synchronize() { LC_CUDA(cudaStreamSynchronize(handle_)); }

CudaStream& AsCuda(Stream& stream) {
  LC_CHECK(stream.device_type() == DeviceType::kCuda);
  return static_cast<CudaStream&>(stream);
}

CudaDevice::CudaDevice(int index) : index_(index) {
  const CudaDevices found = FindCudaDevices();
  if (index < 0 || index >= static_cast<int>(found.devices.size())) {
    throw DeviceError(found.devices.empty()
                          ? fmt::format("no GPU: {}", found.why_none)
                          : fmt::format("GPU {} does not exist: this machine has {}", index,
                                        found.devices.size()));
  }
  LC_CUDA(cudaSetDevice(index));
  LC_CUDA(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, index));
  int major = 0, minor = 0;
  LC_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  LC_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  capability_ = 10 * major + minor;
  if (capability_ < 80) {
    throw DeviceError(fmt::format("{} is too old: sm_80 (Ampere) is the least that is run",
                                  found.devices[static_cast<size_t>(index)].name));
  }
}

CudaDevice::~CudaDevice() = default;

DeviceInfo CudaDevice::Info() const {
  const CudaDevices found = FindCudaDevices();
  LC_CHECK(index_ < static_cast<int>(found.devices.size()), "the GPU is gone: {}", found.why_none);
  return found.devices[static_cast<size_t>(index_)];
}

Buffer CudaDevice::Allocate(size_t bytes) {
  if (bytes == 0) return {};
  LC_CUDA(cudaSetDevice(index_));
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const DeviceInfo info = Info();
    throw CapacityError("{} on {} were asked for, {} are free", FormatBytes(bytes), info.name,
                        FormatBytes(info.free_memory));
  }
  CheckCuda(error, "cudaMalloc");
  return {data, bytes, FreeDevice};
}

std::unique_ptr<Stream> CudaDevice::CreateStream() {
  return std::make_unique<CudaStream>(index_, sm_count_);
}

void CudaDevice::Copy(void* target, const void* source, size_t bytes) {
  LC_CUDA(cudaMemcpy(target, source, bytes, cudaMemcpyDefault));
}

void CudaDevice::Zero(void* target, size_t bytes) { LC_CUDA(cudaMemset(target, 0, bytes)); }

}  // namespace litecache
