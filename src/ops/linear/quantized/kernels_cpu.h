// Kernels of products with blocks of quantized weights: integer dot products with rows in 8 bits,
// which are the terms of x (linear_cpu.h). x86 instructions only; each set of instructions compiles
// the same source (kernels_cpu-inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/block_format.h"

namespace litecache::ops::cpu {

// Values that the kernels process in one step: a block of 256, or 8 blocks of 32.
inline constexpr int64_t kSliceValues = 256;
// Values of x that share a scale.
inline constexpr int64_t kUnitValues = 32;
inline constexpr int64_t kSliceUnits = kSliceValues / kUnitValues;

// Rows of x as level * scale, levels in [-127, 127], padded with zeros to whole slices.
struct QuantizedRows {
  const int8_t* levels = nullptr;  // [rows][stride]
  const float* scales = nullptr;   // [rows][stride / 32]
  const float* sums = nullptr;     // [rows][stride / 32]: scale * the sum of 32 levels
  const float* halves = nullptr;   // [rows][stride / 16]: scale * the sum of 16 levels
  int64_t stride = 0;              // a multiple of 256
};

struct QuantizedGemvArguments {
  const BlockFormat* format;
  const std::byte* weight;  // [count] rows of blocks
  int64_t row_bytes;
  int64_t count;
  int64_t depth;
  QuantizedRows x;
  int64_t tokens;  // up to kMaxQuantizedTokens
  float* sums;     // [tokens][sums_stride]
  int64_t sums_stride;
};
inline constexpr int64_t kMaxQuantizedTokens = 4;

// Panels of x for many rows: `lanes` rows side by side, element after element. A panel of one slice
// is contiguous, in the order of the members.
struct QuantizedPanel {
  // [unit][8][lanes][4] levels, then [unit][lanes] scales, [unit][lanes] sums, [unit][2][lanes]
  // sums of halves.
  static constexpr int64_t Bytes(int64_t lanes) {
    return kSliceUnits * lanes * (kUnitValues + 4 * static_cast<int64_t>(sizeof(float)));
  }
};

// A slice's levels and their scales and minima.
inline constexpr int64_t kUnpackedBytes =
    kSliceValues + 4 * kSliceUnits * static_cast<int64_t>(sizeof(float));

struct QuantizedGemmArguments {
  const BlockFormat* format;
  const std::byte* weight;  // [count] rows, from the first block on that is to be multiplied
  int64_t row_bytes;
  int64_t count;
  int64_t depth;            // columns from there on
  const std::byte* panels;  // of panel p and slice s at p * panel_stride + s * Bytes(lanes)
  int64_t panel_stride;
  int64_t panel_count;
  bool accumulate;
  std::byte* unpacked;  // scratch: kUnpackedBytes for every slice of every row
  float* sums;          // [panel][count][lanes], = or +=
};

struct QuantizedKernels {
  int64_t lanes = 0;
  // sums[t][r] = weight[r] . x[t].
  void (*gemv)(const QuantizedGemvArguments& a) = nullptr;
  void (*gemm)(const QuantizedGemmArguments& a) = nullptr;
};

// For CpuIsa::kAvx2, and CpuIsa::kAvx512Bf16: every CPU with BF16 dot products has those of bytes.
// Of x86 only.
extern const QuantizedKernels kAvx2QuantizedKernels;
extern const QuantizedKernels kAvx512VnniQuantizedKernels;

// Called with a format that no kernel knows: does not return.
[[noreturn]] void UnknownBlocks(const BlockFormat& format);

}  // namespace litecache::ops::cpu
