// A device of plain host memory for tests: counts allocated bytes and fails on demand.
#pragma once

#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "device/device.h"

namespace litecache::kv {

class HostDevice final : public Device {
 public:
  // Allocate() fails if it would exceed `limit` bytes in use.
  explicit HostDevice(size_t limit = SIZE_MAX) : limit_(limit) {}
  ~HostDevice() override { LC_CHECK(live_ == 0, "{} bytes were leaked", live_); }

  DeviceType type() const override { return DeviceType::kCpu; }
  DeviceInfo Info() const override { return {"host memory", limit_, limit_ - live_, 1}; }
  Buffer Allocate(size_t bytes) override {
    if (bytes > limit_ - live_) throw CapacityError("the test's device has no {} bytes", bytes);
    live_ += bytes;
    return Buffer(std::aligned_alloc(64, (bytes + 63) / 64 * 64), bytes, [](void* data, size_t n) {
      live_ -= n;
      std::free(data);
    });
  }
  std::unique_ptr<Stream> CreateStream() override { return nullptr; }

  static size_t live() { return live_; }
  void set_limit(size_t limit) { limit_ = limit; }

 private:
  size_t limit_;
  static inline size_t live_ = 0;  // static because a Buffer's deleter has no state
};

}  // namespace litecache::kv
