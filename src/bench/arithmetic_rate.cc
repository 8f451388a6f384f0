// Peak arithmetic rate of the processor: chains of multiply-adds that stay in registers.
#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace litecache::bench {
namespace {

// A latency of 4 to 5 cycles times two units needs ten chains; twelve leave registers for operands.
constexpr int kChains = 12;
constexpr int64_t kIterations = 2'000'000;
constexpr int kRatePasses = 3;

// kIterations of kChains multiply-adds: the number of operations, and a value that depends on all
// of them.
struct Work {
  double flops;
  float value;
};

Work Portable() {
  constexpr int kLanes = 4;
  float sums[kChains][kLanes] = {};
  volatile float factor = 0.5f;
  const float f = factor;
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& sum : sums) {
      for (float& lane : sum) lane = lane * f + f;
    }
  }
  float value = 0;
  for (const auto& sum : sums) {
    for (const float lane : sum) value += lane;
  }
  return {2.0 * kLanes * kChains * static_cast<double>(kIterations), value};
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) Work Avx2() {
  __m256 sums[kChains];
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  volatile float factor = 0.5f;
  const __m256 f = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm256_fmadd_ps(sums[c], f, f);
  }
  float value = 0;
  for (const auto& sum : sums) value += _mm256_cvtss_f32(sum);
  return {2.0 * 8 * kChains * static_cast<double>(kIterations), value};
}

__attribute__((target("avx512f"))) Work Avx512() {
  __m512 sums[kChains];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  volatile float factor = 0.5f;
  const __m512 f = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_fmadd_ps(sums[c], f, f);
  }
  float value = 0;
  for (const auto& sum : sums) value += _mm512_cvtss_f32(sum);
  return {2.0 * 16 * kChains * static_cast<double>(kIterations), value};
}

__attribute__((target("avx512f,avx512bf16"))) Work Avx512Bf16() {
  __m512 sums[kChains];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  volatile float factor = 0.5f;
  const __m512 f = _mm512_set1_ps(factor);
  const __m512bh pairs = _mm512_cvtne2ps_pbh(f, f);
  for (int64_t i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbf16_ps(sums[c], pairs, pairs);
  }
  float value = 0;
  for (const auto& sum : sums) value += _mm512_cvtss_f32(sum);
  return {4.0 * 16 * kChains * static_cast<double>(kIterations), value};
}

#endif

using Function = Work (*)();

Function Choose(DType dtype) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (dtype == DType::kBF16 && __builtin_cpu_supports("avx512bf16")) return Avx512Bf16;
  if (__builtin_cpu_supports("avx512f")) return Avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2;
#endif
  return Portable;
}

}  // namespace

double MeasureArithmetic(ThreadPool& pool, DType dtype) {
  const Function work = Choose(dtype);
  std::vector<double> flops(static_cast<size_t>(pool.size()));
  volatile float sink = 0;
  double best = 0;
  for (int pass = 0; pass < kRatePasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run([&](int worker) {
      const Work done = work();
      flops[static_cast<size_t>(worker)] = done.flops;
      if (done.value < 0) sink = done.value;  // never true: keeps the compiler from dropping work
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double total = 0;
    for (const double f : flops) total += f;
    best = std::max(best, total / seconds);
  }
  return best;
}

}  // namespace litecache::bench
