// The names of recorded steps (Stream::Run).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/hash.h"
#include "device/device.h"

namespace litecache {

// Made of everything that a step's operations are given besides what lies in memory, in any fixed
// order: steps of one key issue the same operations with the same arguments.
class RecordingKey {
 public:
  RecordingKey() = default;
  // name: of a step that shares its stream with others.
  explicit RecordingKey(std::string_view name) : hash_(Fnv1a(name)) {}

  // Memory that kernels are given the address of. Where an address comes back for other memory, the
  // recording does, too: it is as right for that.
  RecordingKey& Add(const Buffer& memory) { return AddAddress(memory.data()); }
  RecordingKey& AddAddress(const void* address) {
    return Add(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)));
  }
  // Memory that the step copies from or to. A recorded copy holds on to pinned memory itself, and
  // the driver crashes when that is gone: an address that comes back will not do.
  RecordingKey& Add(const Mirror& mirror) { return Add(mirror.serial()); }
  // Sizes, other keys.
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
