// The GPU memory that matrix products keep, for the memory plan.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// Bytes for each stream that has multiplied anything, until it is destroyed: the library's
// workspace.
constexpr uint64_t LinearScratchBytes() { return uint64_t{32} << 20; }

// Bytes more for each stream that has multiplied many rows with packed blocks: a slice of weights
// in bf16.
constexpr uint64_t UnpackedSliceBytes() { return uint64_t{64} << 20; }

}  // namespace litecache::ops::cuda
