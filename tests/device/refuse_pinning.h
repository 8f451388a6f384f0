// Makes the driver refuse to pin memory, for tests: the refusal comes from the real driver.
#pragma once

namespace litecache::testing {

// While such an object exists, memory advised as huge pages, like PinnedHost's, gets an
// inaccessible page, which the driver cannot pin.
class RefusePinning {
 public:
  RefusePinning();
  ~RefusePinning();
  RefusePinning(const RefusePinning&) = delete;
  RefusePinning& operator=(const RefusePinning&) = delete;

  // The address of the last such memory, or null.
  static void* last();
};

}  // namespace litecache::testing
