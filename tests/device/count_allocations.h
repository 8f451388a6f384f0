// Counts how often a program asks the driver for GPU memory or for pinned host memory.
#pragma once

#include <cstdint>

namespace litecache::testing {

// Number of calls so far. Only for programs linked with count_allocations.cc, which replaces the
// driver's functions (tests/engine/CMakeLists.txt).
int64_t Allocations();
// Makes every allocation of managed memory fail from here on, or not any more.
void RefuseManaged(bool refuse);

}  // namespace litecache::testing
