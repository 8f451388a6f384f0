// Tests of the program with every family, on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "device/cuda/cuda_devices.h"

namespace litecache::testing {

class FamilyOnDevice : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 public:
  static auto All() {
    std::vector<std::string> names = FamilyNames();
    names.emplace_back("gemma4_text-experts");  // the one model with experts beside other blocks
    return ::testing::Combine(::testing::ValuesIn(names), ::testing::Values("cpu", "cuda"));
  }
  static std::string Name(const ::testing::TestParamInfo<ParamType>& info) {
    std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
    std::ranges::replace(name, '-', '_');
    return name;
  }

 protected:
  void SetUp() override {
    if (device() == "cuda" && FindCudaDevices().devices.empty()) {
      GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
    }
  }
  // Whether the program says that the family needs the CPU for this.
  static bool Refused(const ProgramResult& result) {
    const auto says = [&](const char* words) {
      return result.err.find(words) != std::string::npos;
    };
    return device() != "cpu" && result.exit_code != 0 &&
           (says("device = cpu") || says("--device cpu"));
  }
  static const std::string& family() { return std::get<0>(GetParam()); }
  static const std::string& device() { return std::get<1>(GetParam()); }
};

}  // namespace litecache::testing
