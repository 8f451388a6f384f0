// Counts how often a program asks the driver for GPU memory or for pinned host memory.
#pragma once

#include <cstdint>

namespace litecache::testing {

// Calls so far. Only in programs that are linked with count_allocations.cc in place of the driver's
// functions (tests/engine/CMakeLists.txt).
int64_t Allocations();

}  // namespace litecache::testing
