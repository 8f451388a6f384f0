// Memory of the device under test, for the CPU's and a GPU's tests.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"

namespace litecache::ops {

class DeviceMemory {
 protected:
  // The device must outlive this object.
  void Use(Device* device) {
    device_ = device;
    stream_ = device->CreateStream();
  }

  // Device memory with these values; exists as long as the test.
  template <typename T>
  T* Upload(std::span<const T> values) {
    buffers_.push_back(device_->Allocate(values.size_bytes()));
    device_->Upload(buffers_.back().data(), values.data(), values.size_bytes());
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
    device_->Download(values.data(), device, count * sizeof(T));
    return values;
  }

  Device* device_ = nullptr;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace litecache::ops
