// A driver that refuses to pin memory, for tests: the refusal is the driver's own.
#pragma once

namespace litecache::testing {

// While one lives, memory that is to be of huge pages, as PinnedHost's is, has a page that nobody
// may access. The driver cannot pin that.
class RefusePinning {
 public:
  RefusePinning();
  ~RefusePinning();
  RefusePinning(const RefusePinning&) = delete;
  RefusePinning& operator=(const RefusePinning&) = delete;

  // Where the last such memory began; null: there was none.
  static void* last();
};

}  // namespace litecache::testing
