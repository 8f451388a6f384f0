#include "ops/linear/quantized/quantize_x_cpu.h"

#include <algorithm>
#include <bit>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/quantized/quantize_x_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void QuantizeSlice(const float* x, int64_t n, int16_t* levels, SliceFactors* factors) {
  constexpr int64_t kHalf = kUnitValues / 2;
  const hn::CappedTag<float, kHalf / 2> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int16_t, decltype(d)> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // As integers, so that a NaN is the largest.
  auto largest = hn::Zero(di);
  for (int64_t i = 0; i < n; i += lanes) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  }
  const auto magnitude = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  if (!(magnitude <= std::numeric_limits<float>::max())) {
    // A NaN becomes the least or the largest integer, and a sum of these overflows.
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(levels, n, int16_t{0});
    factors->scale = kNan;
    std::fill_n(factors->sums, n / kUnitValues, kNan);
    std::fill_n(factors->halves, n / kHalf, kNan);
    return;
  }
  const bool zero = magnitude < 1e-30f;
  factors->scale = zero ? 0.0f : magnitude / kMostX;
  const auto inverse = hn::Set(d, zero ? 0.0f : kMostX / magnitude);
  for (int64_t half = 0; half < n / kHalf; ++half) {
    auto sum = hn::Zero(di);
    int16_t* out = levels + half / 2 * kUnitValues + half % 2 * (kHalf / 2);
    for (int64_t i = 0; i < kHalf / 2; i += lanes) {
      hn::Vec<decltype(d)> even, odd;
      hn::LoadInterleaved2(d, x + half * kHalf + 2 * i, even, odd);
      const auto even_level = hn::NearestInt(hn::Mul(even, inverse));
      const auto odd_level = hn::NearestInt(hn::Mul(odd, inverse));
      hn::StoreU(hn::DemoteTo(d16, even_level), d16, out + i);
      hn::StoreU(hn::DemoteTo(d16, odd_level), d16, out + kHalf + i);
      sum = hn::Add(sum, hn::Add(even_level, odd_level));
    }
    factors->halves[half] =
        factors->scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
  }
  for (int64_t u = 0; u < n / kUnitValues; ++u) {
    factors->sums[u] = factors->halves[2 * u] + factors->halves[2 * u + 1];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(QuantizeSlice);

void QuantizeX(const float* x, int64_t n, int16_t* levels, SliceFactors* factors) {
  HWY_DYNAMIC_DISPATCH(QuantizeSlice)(x, n, levels, factors);
}

}  // namespace litecache::ops::cpu
#endif
