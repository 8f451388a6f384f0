// The NVIDIA GPUs of this machine, without CUDA types.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace litecache {

struct CudaDevices {
  std::vector<DeviceInfo> devices;
  // Why there are none: "built without CUDA", or the driver's message. Empty if there are some.
  std::string reason;
  // Whether this machine has an NVIDIA driver, in which case finding no GPU is unexpected.
  bool driver = false;
};

// Never throws. The free memory is that of GPU `index` alone, or of all: to query it initializes
// a GPU, which takes half a GiB of it. The thread's current GPU stays what it was.
inline constexpr int kAllGpus = -1;
CudaDevices FindCudaDevices(int index = kAllGpus);

// What this program was built with: "13.0, for compute capabilities 80, 90"; empty without CUDA.
std::string CudaOfBuild();

}  // namespace litecache
