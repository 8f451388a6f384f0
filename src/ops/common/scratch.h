// Reusable memory of a thread, so that operations allocate nothing in their steady state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace litecache::ops::cpu {

// Bytes that all blocks of all threads hold, to check memory plans against.
inline std::atomic<int64_t>& ScratchBytesHeld() {
  static std::atomic<int64_t> bytes{0};
  return bytes;
}

// A 64-byte aligned block that only grows. Use it as a thread_local; the contents are valid until
// the next Reserve of the same block.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { Count(-static_cast<int64_t>(bytes_)); }

  // Returns at least `count` elements of T, contents undefined.
  template <typename T>
  T* Reserve(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes > bytes_) {
      data_.reset();
      Count(-static_cast<int64_t>(bytes_));
      bytes_ = 0;
      data_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      bytes_ = bytes;
      Count(static_cast<int64_t>(bytes));
    }
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  static void Count(int64_t bytes) {
    ScratchBytesHeld().fetch_add(bytes, std::memory_order_relaxed);
  }

  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace litecache::ops::cpu
