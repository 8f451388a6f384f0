#include "ops/linear/quantized/quantize_x_cpu.h"

#include <bit>
#include <cstring>
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

void QuantizeUnits(const float* x, int64_t n, int8_t* levels, float* scales, float* sums,
                   float* halves) {
  constexpr int64_t kUnit = 32, kHalf = 16;
  const hn::CappedTag<float, kHalf> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t u = 0; u < n / kUnit; ++u, x += kUnit, levels += kUnit) {
    // As integers, so that a NaN is the largest.
    auto largest = hn::Zero(di);
    for (int64_t i = 0; i < kUnit; i += lanes) {
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
    }
    const auto magnitude = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
    const bool finite = magnitude <= std::numeric_limits<float>::max();
    if (!finite) {
      // A NaN becomes the least or the largest integer, and a sum of these overflows.
      std::memset(levels, 0, kUnit);
      scales[u] = sums[u] = halves[2 * u] = halves[2 * u + 1] =
          std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const bool zero = magnitude < 1e-30f;
    scales[u] = zero ? 0.0f : magnitude / 127;
    const auto inverse = hn::Set(d, zero ? 0.0f : 127 / magnitude);
    for (int64_t half = 0; half < 2; ++half) {
      auto sum = hn::Zero(di);
      for (int64_t i = half * kHalf; i < (half + 1) * kHalf; i += lanes) {
        const auto level = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
        hn::StoreU(hn::DemoteTo(d8, level), d8, levels + i);
        sum = hn::Add(sum, level);
      }
      halves[2 * u + half] = scales[u] * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
    }
    sums[u] = halves[2 * u] + halves[2 * u + 1];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(QuantizeUnits);

void QuantizeX(const float* x, int64_t n, int8_t* levels, float* scales, float* sums,
               float* halves) {
  HWY_DYNAMIC_DISPATCH(QuantizeUnits)(x, n, levels, scales, sums, halves);
}

}  // namespace litecache::ops::cpu
#endif
