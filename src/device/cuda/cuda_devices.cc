#include "device/cuda/cuda_devices.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <string>

namespace litecache {

namespace {

std::string Version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why there is no GPU, and what to do. The texts are concatenated by hand because nvcc 13 rejects
// fmt 9's compile-time format strings.
std::string WhyUnavailable(cudaError_t error) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver is installed";
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return std::string("NVIDIA's driver finds no GPU") +
           (visible == nullptr ? "" : std::string("; CUDA_VISIBLE_DEVICES is '") + visible + "'");
  }
  if (error == cudaErrorInsufficientDriver) {
    // Any minor version of the required major version works.
    return "the NVIDIA driver is too old: it runs CUDA " + Version(driver) +
           ", and this program needs " + Version(CUDART_VERSION / 1000 * 1000) +
           " or later: update the driver";
  }
  const std::string does_not_start =
      std::string("NVIDIA's driver does not start: ") + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorSystemDriverMismatch:
      return does_not_start +
             "; it was updated while it ran, or its library and its kernel module are of different "
             "releases: restart the machine, or install both from one package";
    case cudaErrorSystemNotReady:
      return does_not_start +
             "; GPUs connected by NVSwitch need nvidia-fabricmanager: start that service";
    default:
      return does_not_start + "; nvidia-smi and the kernel's log (dmesg) say more";
  }
}

}  // namespace

std::string CudaOfBuild() {
  return Version(CUDART_VERSION) + ", for compute capabilities " LC_CUDA_ARCHITECTURES;
}

CudaDevices FindCudaDevices(int index) {
  CudaDevices found;
  int count = 0, current = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) error = cudaGetDevice(&current);
  for (int i = 0; error == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties;
    error = cudaGetDeviceProperties(&properties, i);
    if (error != cudaSuccess) break;
    size_t free = 0, total = properties.totalGlobalMem;
    if (index == kAllGpus || index == i) {
      error = cudaSetDevice(i);
      if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
      if (error != cudaSuccess) break;
    }
    const std::string name = std::string(properties.name) + ", sm_" +
                             std::to_string(properties.major) + std::to_string(properties.minor);
    found.devices.push_back({name, total, free, properties.multiProcessorCount});
  }
  if (!found.devices.empty()) cudaSetDevice(current);
  if (error != cudaSuccess || count == 0) found.reason = WhyUnavailable(error);
  int driver = 0;
  found.driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  return found;
}

}  // namespace litecache
