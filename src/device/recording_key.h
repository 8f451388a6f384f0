// The keys of recorded steps (Stream::Run).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/hash.h"
#include "device/device.h"

namespace litecache {

// Built from every argument of a step's operations, but not from what memory contains, in any fixed
// order: steps with the same key issue the same operations with the same arguments.
class RecordingKey {
 public:
  RecordingKey() = default;
  // name: tells this kind of step from others on the same stream.
  explicit RecordingKey(std::string_view name) : hash_(Fnv1a(name)) {}

  // Memory whose address is passed to kernels. If the address is reused for other memory, so is the
  // recording: it is valid for that memory, too.
  RecordingKey& Add(const Buffer& memory) { return AddAddress(memory.data()); }
  RecordingKey& AddAddress(const void* address) {
    return Add(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)));
  }
  // Memory that the step copies from or to. A recorded copy refers to the pinned memory itself, and
  // the driver crashes if that has been freed: a reused address must give another key.
  RecordingKey& Add(const Mirror& mirror) { return Add(mirror.serial()); }
  // Sizes and other keys.
  RecordingKey& Add(uint64_t number) {
    hash_ = HashOf({hash_, number});
    return *this;
  }
  RecordingKey& Add(int64_t number) { return Add(static_cast<uint64_t>(number)); }

  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

}  // namespace litecache
