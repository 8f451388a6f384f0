#include "ops/select/group_softmax_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/group_softmax_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/exp2-inl.h"
#include "ops/common/simd-inl.h"

#ifndef LITECACHE_OPS_CPU_SELECT_GROUP_SOFTMAX_
#define LITECACHE_OPS_CPU_SELECT_GROUP_SOFTMAX_
namespace litecache::ops::cpu {
namespace {
// Scores are clamped to this range, so that infinities are never subtracted.
constexpr float kLargest = std::numeric_limits<float>::max() / 2;
constexpr float kLog2E = 1.44269504f;
}  // namespace
}  // namespace litecache::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// Four independent chains hide the latency of maxima and sums.
float Maximum(const float* x, int64_t n) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto least = hn::Set(d, -kLargest);
  auto m0 = least, m1 = least, m2 = least, m3 = least;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(hn::LoadU(d, x + i), m0);
    m1 = hn::Max(hn::LoadU(d, x + i + lanes), m1);
    m2 = hn::Max(hn::LoadU(d, x + i + 2 * lanes), m2);
    m3 = hn::Max(hn::LoadU(d, x + i + 3 * lanes), m3);
  }
  for (; i + lanes <= n; i += lanes) m0 = hn::Max(hn::LoadU(d, x + i), m0);
  float rest = -kLargest;
  for (; i < n; ++i) rest = std::max(rest, x[i]);
  return std::max(rest, hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)))));
}

void ExpPiece(float* x, int64_t n, float scale, float* maximum, float* sum) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float factor = scale * kLog2E;
  const float highest = std::clamp(Maximum(x, n) * factor, -kLargest, kLargest);
  const auto exponential = [&](auto tag, int64_t i) HWY_ATTR {
    const auto v = hn::MulSub(hn::LoadU(tag, x + i), hn::Set(tag, factor), hn::Set(tag, highest));
    const auto e = Exp2(tag, v);
    hn::StoreU(e, tag, x + i);
    return e;
  };
  auto s0 = hn::Zero(d), s1 = s0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    s0 = hn::Add(s0, exponential(d, i));
    s1 = hn::Add(s1, exponential(d, i + lanes));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, exponential(d, i));
  float tail = 0;
  for (; i < n; ++i) tail += hn::GetLane(exponential(F32x1(), i));
  *maximum = highest;
  *sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))) + tail;
}

void WeightedSum(const float* x, int64_t stride, int64_t heads, const float* factors, int64_t n,
                 float* out) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    auto sum = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factors[0]));
    for (int64_t j = 1; j < heads; ++j) {
      sum = hn::MulAdd(hn::LoadU(d, x + j * stride + i), hn::Set(d, factors[j]), sum);
    }
    hn::StoreU(sum, d, out + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ExpPiece);
HWY_EXPORT(WeightedSum);

SoftmaxPart SoftmaxPiece(float* x, int64_t n, float scale) {
  SoftmaxPart part;
  HWY_DYNAMIC_DISPATCH(ExpPiece)(x, n, scale, &part.maximum, &part.sum);
  return part;
}

void SoftmaxFactors(const SoftmaxPart* parts, int64_t pieces, int64_t heads, float* factors) {
  for (int64_t j = 0; j < heads; ++j) {
    float maximum = -kLargest, sum = 0;
    for (int64_t p = 0; p < pieces; ++p) maximum = std::max(maximum, parts[p * heads + j].maximum);
    for (int64_t p = 0; p < pieces; ++p) {
      const SoftmaxPart& part = parts[p * heads + j];
      factors[p * heads + j] = std::exp2(part.maximum - maximum);
      sum += part.sum * factors[p * heads + j];
    }
    for (int64_t p = 0; p < pieces; ++p) factors[p * heads + j] /= sum;
  }
}

void SumHeads(const float* x, int64_t stride, int64_t heads, const float* factors, int64_t n,
              float* out) {
  HWY_DYNAMIC_DISPATCH(WeightedSum)(x, stride, heads, factors, n, out);
}

}  // namespace litecache::ops::cpu
#endif
