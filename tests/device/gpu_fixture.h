// Provides a GPU for a test, or a reason to skip it.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_devices.h"

namespace litecache::testing {

class GpuFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices found = FindCudaDevices();
    if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.reason;
    gpu_ = std::make_unique<CudaDevice>(0);
  }
  std::unique_ptr<CudaDevice> gpu_;
};

}  // namespace litecache::testing
