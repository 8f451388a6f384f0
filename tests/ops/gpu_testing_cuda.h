// Shared by the tests of CUDA operations: a GPU, or a reason to skip; memory on it.
#pragma once

#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "device/gpu_fixture.h"
#include "ops/device_memory.h"

namespace litecache::ops::cuda {

// Skipped without a GPU; scripts/gpu-check runs these tests.
class GpuTest : public testing::GpuFixture, protected DeviceMemory {
 protected:
  void SetUp() override {
    GpuFixture::SetUp();
    if (gpu_ != nullptr) Use(gpu_.get());
  }
};

}  // namespace litecache::ops::cuda
