// Kernels of products with blocks of quantized weights: integer dot products with rows of x in 16
// bits, exact in 32. x86 instructions only; each set of instructions compiles the same source
// (kernels_cpu-inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/block_format.h"
#include "ops/linear/quantized/quantize_x_cpu.h"

namespace litecache::ops::cpu {

inline constexpr int64_t kSliceQuads = kSliceValues / 4;

// Rows of x (quantize_x_cpu.h), padded with zeros to whole slices.
struct QuantizedRows {
  const int16_t* levels = nullptr;        // [rows][slices][256], as arranged
  const int32_t* quads = nullptr;         // [rows][slices][64], if they are
  const SliceFactors* factors = nullptr;  // [rows][slices]
  int64_t slices = 0;
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
// With 8 rows two passes that unpack weights in registers take three quarters of the time of one
// that unpacks them in memory, with 16 rows they take more.
inline constexpr int64_t kMaxQuantizedTokens = 8;

// Panels of x for many rows: `lanes` rows side by side. A panel of one slice is contiguous:
// [128][lanes] pairs of levels, then the lanes' SliceFactors, [floats][lanes].
inline constexpr int64_t kSlicePairs = kSliceValues / 2;
inline constexpr int64_t kSliceFloats = sizeof(SliceFactors) / sizeof(float);
inline constexpr int64_t PanelBytes(int64_t lanes) {
  return (kSlicePairs + kSliceFloats) * lanes * 4;
}

// A slice of one row of weights, unpacked: value = scale * level - minimum.
struct alignas(64) UnpackedSlice {
  int16_t levels[kSliceValues];  // in the order of x's
  // Of groups of levels, 32 or as many more as their products' sums fit 32 bits.
  float scales[kSliceUnits];
  float minima[2 * kSliceUnits];  // of 32 values each, or of 16
};

struct QuantizedGemmArguments {
  const BlockFormat* format;
  const std::byte* weight;  // [count] rows, from the first block on that is to be multiplied
  int64_t row_bytes;
  int64_t count;
  int64_t depth;            // columns from there on
  const std::byte* panels;  // of slice s and panel p at s * slice_stride + p * PanelBytes(lanes)
  int64_t slice_stride;
  int64_t panel_count;
  bool accumulate;
  UnpackedSlice* unpacked;  // scratch: [slices][count]
  float* sums;              // [panel][count][lanes], = or +=
};

struct QuantizedKernels {
  int64_t lanes = 0;
  // Brings a slice's levels into the order in which gemv reads them, and writes `quads`, minus the
  // sum of every four neighbours. Null: gemv reads them as they are, and no quads.
  void (*arrange)(int16_t* levels, int32_t* quads) = nullptr;
  // sums[t][r] = weight[r] . x[t].
  void (*gemv)(const QuantizedGemvArguments& a) = nullptr;
  void (*gemm)(const QuantizedGemmArguments& a) = nullptr;
};

// For CpuIsa::kAvx2, and CpuIsa::kAvx512Bf16: every CPU with BF16 dot products has those of
// integers (VNNI). Of x86 only.
extern const QuantizedKernels kAvx2QuantizedKernels;
extern const QuantizedKernels kAvx512VnniQuantizedKernels;

// Called with a format that no kernel knows: does not return.
[[noreturn]] void UnknownBlocks(const BlockFormat& format);

}  // namespace litecache::ops::cpu
