// Settings of tests for the fake GDRCopy (libgdrapi.cc), and its counters.
#pragma once

#include <atomic>

namespace litecache::testing {

struct FakeGdrCopyState {
  std::atomic<bool> has_driver = false;  // false: gdr_open finds no driver
  std::atomic<int> pin_error = 0, map_error = 0;

  // Handles that have not been released.
  std::atomic<int> opened = 0, pinned = 0, mapped = 0;
};

// The name of the library's function that returns the state.
inline constexpr char kFakeGdrCopyState[] = "FakeGdrCopyStateOfLibrary";

}  // namespace litecache::testing
