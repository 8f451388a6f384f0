// Shared by the tests of CUDA operations: a GPU, or a reason to skip; memory on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/gpu_fixture.h"

namespace litecache::ops::cuda {

// Skipped without a GPU; scripts/gpu-check runs these tests.
class GpuTest : public testing::GpuFixture {
 protected:
  void SetUp() override {
    GpuFixture::SetUp();
    if (gpu_ != nullptr) stream_ = gpu_->CreateStream();
  }

  // Device memory with these values; exists as long as the test.
  template <typename T>
  T* Upload(std::span<const T> values) {
    buffers_.push_back(gpu_->Allocate(values.size_bytes()));
    gpu_->Copy(buffers_.back().data(), values.data(), values.size_bytes());
    return buffers_.back().as<T>();
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    return Upload(std::span<const T>(values));
  }
  // Device memory filled with a byte that occurs in no right result.
  template <typename T>
  T* Poisoned(size_t count) {
    const std::vector<unsigned char> bytes(count * sizeof(T), 0xCD);
    return reinterpret_cast<T*>(Upload(bytes));
  }
  // Waits for the stream.
  template <typename T>
  std::vector<T> Download(const T* device, size_t count) {
    stream_->Synchronize();
    std::vector<T> values(count);
    gpu_->Copy(values.data(), device, count * sizeof(T));
    return values;
  }

  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

}  // namespace litecache::ops::cuda
