// The NVIDIA GPUs of this machine, without any CUDA type in sight.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace litecache {

struct CudaDevices {
  std::vector<DeviceInfo> devices;
  // Why there are none: "built without CUDA", or what the driver said. Empty when there are some.
  std::string why_none;
  // Whether this machine has an NVIDIA driver, so that finding no GPU is a surprise.
  bool driver = false;
};

// Never throws and never initializes a context on a GPU beyond what asking for its memory takes.
CudaDevices FindCudaDevices();

}  // namespace litecache
