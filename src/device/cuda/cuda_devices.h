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

// Never throws; on each GPU it only initializes what is needed to query its memory.
CudaDevices FindCudaDevices();

}  // namespace litecache
