// Kernels written with AVX-512 intrinsics: what Highway 1.0 (Debian 12) cannot say, which is BF16
// dot products, and transposes. Call only at the CpuIsa level named; elsewhere they abort.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/gemm_kernel.h"

namespace litecache::ops::cpu {

// Panels and rows of bf16 pairs, multiplied by vdpbf16ps. CpuIsa::kAvx512Bf16.
GemmKernel Avx512Bf16GemmKernel();

// GemmKernel::pack for f32 panels and GemmKernel::store. CpuIsa::kAvx512.
void Avx512PackF32(const float* x, int64_t stride, int64_t rows, int64_t depth, int64_t vectors,
                   bool round_to_bf16, void* panel);
void Avx512Store(const float* sums, int64_t width, int64_t tokens, int64_t n, const float* bias,
                 bool add, float* y, int64_t stride);

// Probabilities [rows][width] f32 as a panel [ceil(rows / 2)][width] of bf16 pairs.
// CpuIsa::kAvx512Bf16.
void Avx512PackPairs(const float* x, int64_t rows, int64_t width, void* panel);

// Pairs of bf16 rows of n elements interleaved: out[p][i] = {rows[2p][i], rows[2p + 1][i]}; the
// partner of an odd last row is zero. CpuIsa::kAvx512.
void Avx512InterleaveRows(const std::byte* const* rows, int64_t count, int64_t n, uint32_t* out);

}  // namespace litecache::ops::cpu
