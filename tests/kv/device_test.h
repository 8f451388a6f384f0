// The base of cache tests that run on both backends, and helpers for their inputs.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "device/cuda/cuda_devices.h"
#include "device/device.h"

namespace litecache::kv {

template <class T>
T Pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

// The type of a device by its name, as in OpenMachine().
inline DeviceType TypeOf(const std::string& device) {
  return device == "cpu" ? DeviceType::kCpu : DeviceType::kCuda;
}

// A test that runs on both backends; skipped if the machine has no GPU.
class DeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (device() == "cuda" && FindCudaDevices().devices.empty()) {
      GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
    }
  }
  static std::string device() { return GetParam(); }
  static DeviceType device_type() { return TypeOf(device()); }
};

// Names a test's instances by device: scripts select GPU tests by these names.
struct DeviceName {
  template <class T>
  std::string operator()(const ::testing::TestParamInfo<T>& info) const {
    return std::string(info.param);
  }
};

// Matrices in a device's memory, kept until Clear().
class DeviceInputs {
 public:
  explicit DeviceInputs(Device& device) : device_(device) {}
  MatrixView Copy(const void* values, DType dtype, int64_t rows, int64_t cols) {
    const size_t bytes = static_cast<size_t>(rows * cols) * SizeOf(dtype);
    memory_.push_back(device_.Allocate(bytes));
    device_.Upload(memory_.back().data(), values, bytes);
    return MatrixView::Of(memory_.back().data(), dtype, rows, cols);
  }
  void Clear() { memory_.clear(); }

 private:
  Device& device_;
  std::vector<Buffer> memory_;
};

}  // namespace litecache::kv
