// Tests of a model on a device: parameters (name, "cpu" or "cuda"), skipped without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>

#include "base/error.h"
#include "device/cuda/cuda_devices.h"
#include "device/machine.h"
#include "model/families.h"
#include "source_directory.h"

namespace litecache::model {

class OnDevice : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {
 protected:
  void SetUp() override {
    const std::string device = std::get<1>(GetParam());
    if (device == "cuda" && FindCudaDevices().devices.empty()) {
      GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
    }
    if (const auto reason = WhyNotOnGpu(); device == "cuda" && !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    machine_ = OpenMachine(device, 2);
  }
  const std::string& name() const { return std::get<0>(GetParam()); }
  Device& device() { return machine_.compute(); }
  bool on_gpu() const { return machine_.gpu != nullptr; }

 private:
  // Of a fixture; empty: it runs there.
  std::string WhyNotOnGpu() const {
    const auto model = SourceDirectory() / "tests/fixtures/models" / name();
    if (!std::filesystem::exists(model)) return "";
    try {
      CheckRunsOnGpu(ModelConfig::FromModel(model));
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "";
  }

  Machine machine_;
};

// A test's name. Scripts select GPU tests by it.
inline std::string TestName(const ::testing::TestParamInfo<OnDevice::ParamType>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace litecache::model
