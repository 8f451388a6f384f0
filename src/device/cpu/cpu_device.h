// The CPU backend: host memory and a thread pool.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"

namespace litecache {

// Runs operations immediately on the device's thread pool.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(ThreadPool& pool) : pool_(pool) {}
  DeviceType device_type() const override { return DeviceType::kCpu; }
  void Synchronize() override {}
  ThreadPool& pool() const { return pool_; }

 private:
  ThreadPool& pool_;
};

// Casts to a CPU stream; CHECK-fails for another backend's stream.
CpuStream& AsCpu(Stream& stream);

class CpuDevice final : public Device {
 public:
  // threads <= 0: one per core that the process may run on.
  explicit CpuDevice(int threads = 0);
  DeviceType type() const override { return DeviceType::kCpu; }
  DeviceInfo Info() const override;
  // 64-byte aligned; at 2 MiB and above aligned to and advised as huge pages. Not zeroed.
  Buffer Allocate(size_t bytes) override;
  std::unique_ptr<Stream> CreateStream() override;
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
};

}  // namespace litecache
