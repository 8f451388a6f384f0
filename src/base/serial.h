// Numbers that tell things of one process apart for good, where addresses come back.
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
