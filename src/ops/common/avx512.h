// Kernels in AVX-512 intrinsics for operations that Highway 1.0 (Debian 12) lacks: BF16 dot
// products, and transposes. Call only at the CpuIsa level given with each; elsewhere they abort.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/common/gemm_kernel_cpu.h"

namespace litecache::ops::cpu {

// Word indices that interleave two vectors (kInterleave: lower halves, then upper halves) or the
// two halves of one vector.
struct alignas(64) Indices : std::array<uint16_t, 64> {};
constexpr Indices MakeInterleave(uint16_t second, uint16_t upper) {
  Indices indices{};
  for (uint16_t i = 0; i < 16; ++i) {
    indices[2u * i] = i;
    indices[2u * i + 1] = static_cast<uint16_t>(second + i);
    indices[32u + 2u * i] = static_cast<uint16_t>(upper + i);
    indices[32u + 2u * i + 1] = static_cast<uint16_t>(second + upper + i);
  }
  return indices;
}
inline constexpr Indices kInterleave = MakeInterleave(32, 16);
inline constexpr Indices kInterleaveHalves = MakeInterleave(16, 0);

// Panels and rows of bf16 pairs, multiplied by vdpbf16ps. CpuIsa::kAvx512Bf16.
GemmKernel Avx512Bf16GemmKernel();

// GemmKernel::pack for f32 panels and GemmKernel::store. CpuIsa::kAvx512.
void Avx512PackF32(const float* x, int64_t stride, int64_t rows, int64_t depth, int64_t vectors,
                   bool round_to_bf16, void* panel);
void Avx512Store(const float* sums, int64_t width, int64_t tokens, int64_t n, const float* bias,
                 bool add, float* y, int64_t stride);

// Packs probabilities [rows][width] f32 into a panel [ceil(rows / 2)][width] of bf16 pairs.
// CpuIsa::kAvx512Bf16.
void Avx512PackPairs(const float* x, int64_t rows, int64_t width, void* panel);

// Interleaves pairs of bf16 rows of n elements: out[p][i] = {rows[2p][i], rows[2p + 1][i]}; an odd
// last row is paired with zeros. CpuIsa::kAvx512.
void Avx512InterleaveRows(const std::byte* const* rows, int64_t count, int64_t n, uint32_t* out);

// Multiplies rows of bf16 weights by a few tokens of bf16 x, with vdpbf16ps.
struct Avx512GemvArguments {
  const void* weight;  // [count] rows of `depth` elements
  int64_t stride;      // elements
  int64_t count;
  const void* x;     // [tokens][x_stride], 64-byte aligned, zero from depth to a multiple of 32
  int64_t x_stride;  // elements, a multiple of 32
  int64_t tokens;    // up to kMaxAvx512GemvTokens
  int64_t depth;
  float* sums;  // [tokens][sums_stride]
  int64_t sums_stride;
};
inline constexpr int64_t kMaxAvx512GemvTokens = 16;

// sums[t][r] = weight[r] . x[t]. Each sum is one chain of 16 lanes over the depth, added up in a
// fixed order that does not depend on the number of rows and tokens. CpuIsa::kAvx512Bf16.
void Avx512Gemv(const Avx512GemvArguments& a);

inline constexpr int64_t kDecodeTileRows = 64;
inline constexpr int64_t kMaxDecodeHeads = 16;

// Online softmax attention of `heads` <= kMaxDecodeHeads query heads of one token over `count` in
// [1, kDecodeTileRows] KV rows [K | V] of bf16, all visible. queries [heads][head_dim] bf16, scaled
// for powers of two; head_dim a multiple of 32. cap: of scores so scaled; 0: none. maximum, sum
// [heads] and out [heads][head_dim] (64-byte aligned) are carried from tile to tile. Prefetches the
// `next_count` rows of the next tile. CpuIsa::kAvx512Bf16.
void Avx512DecodeTile(const std::byte* const* rows, int64_t count, const std::byte* const* next,
                      int64_t next_count, int64_t head_dim, const void* queries, int64_t heads,
                      float cap, float* maximum, float* sum, float* out);

}  // namespace litecache::ops::cpu
