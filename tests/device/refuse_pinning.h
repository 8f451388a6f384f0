// A driver that refuses to pin memory, for tests: the refusal is the driver's own.
#pragma once

namespace litecache::testing {

// While such an object exists, memory advised as huge pages, like PinnedHost's, gets a page that
// nobody may access. The driver cannot pin that.
class RefusePinning {
 public:
  RefusePinning();
  ~RefusePinning();
  RefusePinning(const RefusePinning&) = delete;
  RefusePinning& operator=(const RefusePinning&) = delete;

  // The address of the last such memory; null: there was none.
  static void* last();
};

}  // namespace litecache::testing
