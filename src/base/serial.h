// Unique numbers for objects of one process: unlike addresses, they are never reused.
#pragma once

#include <atomic>
#include <cstdint>

namespace litecache {

// 1, 2, ...
inline uint64_t NewSerial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace litecache
