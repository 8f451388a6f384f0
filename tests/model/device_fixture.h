// Tests of a model on a device: parameters (name, "cpu" or "cuda"), skipped without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "device/cuda/cuda_devices.h"
#include "device/machine.h"

namespace litecache::model {

class OnDevice : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {
 protected:
  void SetUp() override {
    const std::string device = std::get<1>(GetParam());
    if (device == "cuda" && FindCudaDevices().devices.empty()) {
      GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
    }
    machine_ = OpenMachine(device, 2);
  }
  const std::string& name() const { return std::get<0>(GetParam()); }
  Device& device() { return machine_.compute(); }
  bool on_gpu() const { return machine_.gpu != nullptr; }

 private:
  Machine machine_;
};

// A test's name. Scripts select GPU tests by it.
inline std::string TestName(const ::testing::TestParamInfo<OnDevice::ParamType>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace litecache::model
