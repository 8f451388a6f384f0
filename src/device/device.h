// What a backend provides to the layers above: memory, streams, and information about itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/serial.h"

namespace litecache {

enum class DeviceType { kCpu, kCuda };

struct DeviceInfo {
  std::string name;           // "AMD EPYC 9575F, 2 threads, AVX3_ZEN4"
  uint64_t total_memory = 0;  // bytes this process may use at most (cgroup limit respected)
  uint64_t free_memory = 0;   // bytes available at present
  int parallelism = 1;        // CPU threads, or SMs
};

// Owned device memory, aligned to 64 bytes at least. Move-only; freed by its destructor.
class Buffer {
 public:
  Buffer() = default;
  using Deleter = void (*)(void* data, size_t bytes);
  Buffer(void* data, size_t bytes, Deleter deleter)
      : data_(data), bytes_(bytes), deleter_(deleter) {}
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    Swap(moved);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) deleter_(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void Swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(deleter_, other.deleter_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Deleter deleter_ = nullptr;
};

// An ordered queue of operations. Operations (src/ops) are issued on a stream; on the CPU they run
// immediately on the stream's threads, on CUDA they are enqueued and can be captured into a graph.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceType device_type() const = 0;
  // Returns when everything issued so far has finished.
  virtual void Synchronize() = 0;
  // Issues a step's operations: `issue` issues them on this stream. A step whose key has been seen
  // may be replayed from a recording instead: two steps with the same key must issue the same
  // operations with the same arguments, and may differ only in the contents of memory.
  virtual void Run(uint64_t key, const std::function<void()>& issue) { issue(); }
};

// The same bytes on the host and on the device, for a step's input from the host and results to it.
// On the CPU both sides are the same memory.
class Mirror {
 public:
  virtual ~Mirror() = default;
  template <typename T = std::byte>
  T* host() const {
    return static_cast<T*>(host_);
  }
  template <typename T = std::byte>
  T* device() const {
    return static_cast<T*>(device_);
  }
  // Copy the first `bytes` to the device, or back to the host, in the stream's order. The host's
  // bytes must not change before a Send() is done, and may be read after Synchronize().
  virtual void Send(Stream& stream, size_t bytes) {}
  virtual void Receive(Stream& stream, size_t bytes) {}
  // Identifies this memory uniquely, whereas addresses are reused (RecordingKey).
  uint64_t serial() const { return serial_; }

 protected:
  Mirror(void* host, void* device) : host_(host), device_(device) {}

 private:
  void* host_;
  void* device_;
  uint64_t serial_ = NewSerial();
};

// A mirror whose two sides are the same memory.
class HostMirror final : public Mirror {
 public:
  explicit HostMirror(Buffer memory)
      : Mirror(memory.data(), memory.data()), memory_(std::move(memory)) {}

 private:
  Buffer memory_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceType type() const = 0;
  virtual DeviceInfo Info() const = 0;
  // Throws CapacityError with the numbers if there is not enough memory.
  virtual Buffer Allocate(size_t bytes) = 0;
  virtual std::unique_ptr<Stream> CreateStream() = 0;
  virtual std::unique_ptr<Mirror> CreateMirror(size_t bytes) {
    return std::make_unique<HostMirror>(Allocate(bytes));
  }

  // Blocking copies into, out of and within this device's memory, after all work enqueued on its
  // streams.
  virtual void Upload(void* target, const void* host, size_t bytes) {
    std::memcpy(target, host, bytes);
  }
  virtual void Download(void* host, const void* source, size_t bytes) {
    std::memcpy(host, source, bytes);
  }
  virtual void CopyWithin(void* target, const void* source, size_t bytes) {
    std::memcpy(target, source, bytes);
  }
};

}  // namespace litecache
