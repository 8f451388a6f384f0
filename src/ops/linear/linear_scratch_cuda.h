// The GPU memory that matrix products keep, for the memory plan.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// Bytes for each stream that has multiplied anything, until it is destroyed: the library's
// workspace.
constexpr uint64_t LinearScratchBytes() { return uint64_t{32} << 20; }

}  // namespace litecache::ops::cuda
