// How often a program has asked the driver for memory: of the GPU, or of the host for it.
#pragma once

#include <cstdint>

namespace litecache::testing {

// Calls so far. Only in programs that are linked with count_allocations.cc in the place of the
// driver's functions (tests/engine/CMakeLists.txt).
int64_t Allocations();

}  // namespace litecache::testing
