// Products on a GPU, for what only its implementation promises.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear_testing.h"

namespace litecache::ops::cuda {

class CudaLinearTest : public LinearTest {
 protected:
  void SetUp() override {
    LinearTest::SetUp();
    gpu_ = static_cast<CudaDevice*>(device_);
  }
  CudaDevice* gpu_ = nullptr;
};

}  // namespace litecache::ops::cuda
