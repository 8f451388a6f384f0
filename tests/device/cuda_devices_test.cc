#include "device/cuda/cuda_devices.h"

#include <gtest/gtest.h>

namespace litecache {
namespace {

// Runs on every machine: there are GPUs with plausible properties, or there is a reason for having
// none.
TEST(CudaDevices, GpusOrAReason) {
  const CudaDevices found = FindCudaDevices();
  EXPECT_NE(found.devices.empty(), found.reason.empty());
  for (const DeviceInfo& device : found.devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.parallelism, 0);
    EXPECT_GT(device.total_memory, 1ull << 30);
    EXPECT_LE(device.free_memory, device.total_memory);
  }
}

}  // namespace
}  // namespace litecache
