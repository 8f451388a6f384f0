#include "ops/cpu/select/group_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/select/group_softmax.cc"
#include "hwy/foreach_target.h"
// Highway's header comes after foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/simd-inl.h"

#ifndef LITECACHE_OPS_CPU_SELECT_GROUP_SOFTMAX_
#define LITECACHE_OPS_CPU_SELECT_GROUP_SOFTMAX_
namespace litecache::ops::cpu {
namespace {
// Scores are brought into this range, so that two infinities never meet in a difference.
constexpr float kLargest = std::numeric_limits<float>::max() / 2;
}  // namespace
}  // namespace litecache::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void ExpPiece(float* x, int64_t n, float scale, float* maximum, float* sum) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto highest = hn::Set(d, -kLargest);
  float rest = -kLargest;
  const auto scaled = [&](auto tag, int64_t i) HWY_ATTR {
    const auto v = hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, scale));
    return hn::Max(hn::Min(v, hn::Set(tag, kLargest)), hn::Set(tag, -kLargest));
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = scaled(d, i);
    highest = hn::Max(highest, v);
    hn::StoreU(v, d, x + i);
  }
  const F32x1 d1;
  for (; i < n; ++i) {
    x[i] = hn::GetLane(scaled(d1, i));
    rest = std::max(rest, x[i]);
  }
  *maximum = std::max(rest, hn::GetLane(hn::MaxOfLanes(d, highest)));
  auto total = hn::Zero(d);
  float tail = 0;
  for (i = 0; i + lanes <= n; i += lanes) {
    const auto e = Exp(d, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, *maximum)));
    total = hn::Add(total, e);
    hn::StoreU(e, d, x + i);
  }
  for (; i < n; ++i) {
    x[i] = hn::GetLane(Exp(d1, hn::Set(d1, x[i] - *maximum)));
    tail += x[i];
  }
  *sum = hn::GetLane(hn::SumOfLanes(d, total)) + tail;
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
      factors[p * heads + j] = std::exp(part.maximum - maximum);
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
