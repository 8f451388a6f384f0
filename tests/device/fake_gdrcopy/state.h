// What tests ask of the fake GDRCopy (libgdrapi.cc), and what it has seen.
#pragma once

#include <atomic>

namespace litecache::testing {

struct FakeGdrCopyState {
  std::atomic<bool> has_driver = false;  // no: gdr_open finds none
  std::atomic<int> pin_error = 0, map_error = 0;

  // Not given back yet.
  std::atomic<int> opened = 0, pinned = 0, mapped = 0;
};

// The name of its function that gives the state.
inline constexpr char kFakeGdrCopyState[] = "FakeGdrCopyStateOfLibrary";

}  // namespace litecache::testing
