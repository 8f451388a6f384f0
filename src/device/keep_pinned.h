// Keeps pinned memory for programs that create one large host store after another.
#pragma once

#include <cstddef>

namespace litecache {

// While such an object exists, large allocations of pinned host memory come from arenas
// (pinned_arenas.h), which are kept when the allocations are freed: touching and registering memory
// takes longer than a measurement. Does nothing without CUDA.
class KeepPinned {
 public:
  KeepPinned();
  ~KeepPinned();  // NOLINT(performance-trivially-destructible): with CUDA it is not
  KeepPinned(const KeepPinned&) = delete;
  KeepPinned& operator=(const KeepPinned&) = delete;

  // Unpins the arenas that are not in use.
  static void Drop();
  static size_t bytes();  // of all arenas, in use or not
};

}  // namespace litecache
