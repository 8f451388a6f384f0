// Products of bf16 weights with a few tokens, bound by reading the weights. Lanes are the depth: a
// line of weights is loaded once and takes one dot product per token, half of what the panels of
// avx512.cc take for 8 tokens and a quarter for 4.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/common/avx512.h"
#include "ops/common/avx512_sum-inl.h"
#include "ops/common/avx512_target.h"

#if defined(__x86_64__)

LC_BEGIN_AVX512
namespace litecache::ops::cpu {
namespace {

constexpr int64_t kChunk = 32;  // elements in a vector

// How far ahead weights are prefetched. The hardware's prefetchers stop at page boundaries.
constexpr int64_t kAheadBytes = 8 << 10;
// Tokens in one pass over the rows.
constexpr int64_t kPassTokens = 8;
// Weights that stay in the L1 and L2 cache across all passes.
constexpr int64_t kPassBytes = 32 << 10;

// Sums of kRows rows and kTokens tokens, one register each.
template <int kRows, int kTokens, bool kPrefetch>
inline void Dots(const Avx512GemvArguments& a, const std::byte* w, int64_t ahead, float* sums) {
  static_assert(kRows * kTokens <= 16);
  __m512 dots[16];
  for (int i = 0; i < 16; ++i) dots[i] = _mm512_setzero_ps();
  const int64_t row_bytes = a.stride * 2;
  const auto* x = static_cast<const std::byte*>(a.x);
  const auto accumulate = [&](const __m512i* rows, int64_t i) {
    for (int t = 0; t < kTokens; ++t) {
      const auto values = reinterpret_cast<__m512bh>(
          _mm512_load_si512(x + (static_cast<int64_t>(t) * a.x_stride + i) * 2));
      for (int r = 0; r < kRows; ++r) {
        dots[t * kRows + r] =
            _mm512_dpbf16_ps(dots[t * kRows + r], reinterpret_cast<__m512bh>(rows[r]), values);
      }
    }
  };
  int64_t i = 0;
  for (; i + kChunk <= a.depth; i += kChunk) {
    __m512i rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      const std::byte* row = w + r * row_bytes + i * 2;
      if constexpr (kPrefetch) __builtin_prefetch(row + ahead, 0, 3);
      rows[r] = _mm512_loadu_si512(row);
    }
    accumulate(rows, i);
  }
  if (i < a.depth) {
    const auto mask = static_cast<__mmask32>((uint32_t{1} << (a.depth - i)) - 1);
    __m512i rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r] = _mm512_maskz_loadu_epi16(mask, w + r * row_bytes + i * 2);
    }
    accumulate(rows, i);
  }
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, SumRows16(dots));
  for (int t = 0; t < kTokens; ++t) {
    std::memcpy(sums + t * a.sums_stride, lanes + t * kRows, kRows * sizeof(float));
  }
}

template <int kRows, int kTokens, bool kPrefetch>
__attribute__((noinline)) void Rows(const Avx512GemvArguments& a) {
  const auto* w = static_cast<const std::byte*>(a.weight);
  const int64_t row_bytes = a.stride * 2;
  const int64_t ahead =
      std::max<int64_t>((kAheadBytes + row_bytes - 1) / row_bytes, kRows) * row_bytes;
  int64_t r = 0;
  for (; r + kRows <= a.count; r += kRows) {
    Dots<kRows, kTokens, kPrefetch>(a, w + r * row_bytes, ahead, a.sums + r);
  }
  for (; r < a.count; ++r) {
    Dots<1, kTokens, kPrefetch>(a, w + r * row_bytes, ahead, a.sums + r);
  }
}

template <bool kPrefetch>
void Pass(const Avx512GemvArguments& a) {
  switch (a.tokens) {
    case 1:
      return Rows<16, 1, kPrefetch>(a);
    case 2:
      return Rows<8, 2, kPrefetch>(a);
    case 3:
      return Rows<5, 3, kPrefetch>(a);
    case 4:
      return Rows<4, 4, kPrefetch>(a);
    case 5:
      return Rows<3, 5, kPrefetch>(a);
    case 6:
      return Rows<2, 6, kPrefetch>(a);
    case 7:
      return Rows<2, 7, kPrefetch>(a);
    default:
      return Rows<2, 8, kPrefetch>(a);
  }
}

}  // namespace

void Avx512Gemv(const Avx512GemvArguments& a) {
  LC_CHECK(a.tokens >= 1 && a.tokens <= kMaxAvx512GemvTokens);
  if (a.tokens <= kPassTokens) return Pass<true>(a);
  const int64_t rows = std::max<int64_t>(kPassBytes / (a.stride * 2) / 2 * 2, 2);
  // Two passes over about as many tokens each.
  const int64_t half = (a.tokens + 1) / 2;
  for (int64_t r = 0; r < a.count; r += rows) {
    Avx512GemvArguments pass = a;
    pass.weight = static_cast<const std::byte*>(a.weight) + r * a.stride * 2;
    pass.count = std::min(rows, a.count - r);
    pass.tokens = half;
    pass.sums = a.sums + r;
    Pass<true>(pass);
    pass.x = static_cast<const std::byte*>(a.x) + half * a.x_stride * 2;
    pass.tokens = a.tokens - half;
    pass.sums += half * a.sums_stride;
    Pass<false>(pass);
  }
}

}  // namespace litecache::ops::cpu
LC_END_AVX512

#else  // not x86-64

namespace litecache::ops::cpu {
void Avx512Gemv(const Avx512GemvArguments&) { LC_CHECK(false, "no AVX-512 on this architecture"); }
}  // namespace litecache::ops::cpu

#endif
