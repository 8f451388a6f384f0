#include "ops/attention/attention_tile_cpu.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/attention_tile_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/exp2-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// The maximum stays finite, so that two infinities never meet in a difference.
constexpr float kLargest = std::numeric_limits<float>::max();

// One vector of queries. Four independent chains of maxima and sums hide their latency.
template <bool kMasked>
HWY_INLINE bool SoftmaxLanes(float* scores, int64_t rows, int64_t width, const int32_t* limits,
                             float* maximum, float* sum, float* factor) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto limit = kMasked ? hn::LoadU(di, limits) : hn::Zero(di);
  const auto hidden = hn::Set(d, -kLargest);
  const auto visible = [&](int64_t r) HWY_ATTR {
    return hn::RebindMask(d, hn::Lt(hn::Set(di, static_cast<int32_t>(r)), limit));
  };
  const auto score = [&](int64_t r) HWY_ATTR {
    const auto s = hn::Load(d, scores + r * width);
    if constexpr (kMasked) return hn::IfThenElse(visible(r), s, hidden);
    return s;
  };
  const auto old = hn::Load(d, maximum);
  auto m0 = old, m1 = old, m2 = old, m3 = old;
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    m0 = hn::Max(m0, score(r));
    m1 = hn::Max(m1, score(r + 1));
    m2 = hn::Max(m2, score(r + 2));
    m3 = hn::Max(m3, score(r + 3));
  }
  for (; r < rows; ++r) m0 = hn::Max(m0, score(r));
  const auto highest = hn::Min(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)), hn::Set(d, kLargest));

  const auto probability = [&](int64_t row) HWY_ATTR {
    auto p = Exp2(d, hn::Sub(hn::Load(d, scores + row * width), highest));
    if constexpr (kMasked) p = hn::IfThenElseZero(visible(row), p);
    hn::Store(p, d, scores + row * width);
    return p;
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (r = 0; r + 4 <= rows; r += 4) {
    s0 = hn::Add(s0, probability(r));
    s1 = hn::Add(s1, probability(r + 1));
    s2 = hn::Add(s2, probability(r + 2));
    s3 = hn::Add(s3, probability(r + 3));
  }
  // Hidden rows at a tile's end add nothing: a query's sum does not depend on how many there are.
  if (r < rows) s0 = hn::Add(s0, probability(r));
  if (r + 1 < rows) s1 = hn::Add(s1, probability(r + 1));
  if (r + 2 < rows) s2 = hn::Add(s2, probability(r + 2));
  const auto total = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));

  // Before the first visible row the maximum is -kLargest and the sums are 0, so any factor works.
  const auto scale = Exp2(d, hn::Sub(old, highest));
  hn::Store(highest, d, maximum);
  hn::Store(scale, d, factor);
  hn::Store(hn::MulAdd(hn::Load(d, sum), scale, total), d, sum);
  return !hn::AllTrue(d, hn::Eq(scale, hn::Set(d, 1.0f)));
}

bool SoftmaxTileImpl(float* scores, int64_t rows, int64_t width, const int32_t* limits,
                     float* maximum, float* sum, float* factor) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F32()));
  bool rescale = false;
  for (int64_t l = 0; l < width; l += lanes) {
    rescale |= limits == nullptr ? SoftmaxLanes<false>(scores + l, rows, width, nullptr,
                                                       maximum + l, sum + l, factor + l)
                                 : SoftmaxLanes<true>(scores + l, rows, width, limits + l,
                                                      maximum + l, sum + l, factor + l);
  }
  return rescale;
}

void ScaleRowsImpl(float* x, int64_t rows, int64_t width, const float* factor) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t l = 0; l < width; l += lanes) {
      float* p = x + r * width + l;
      hn::Store(hn::Mul(hn::Load(d, p), hn::Load(d, factor + l)), d, p);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(SoftmaxTileImpl);
HWY_EXPORT(ScaleRowsImpl);

bool SoftmaxTile(float* scores, int64_t rows, int64_t width, const int32_t* limits, float* maximum,
                 float* sum, float* factor) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxTileImpl)(scores, rows, width, limits, maximum, sum, factor);
}

void ScaleRows(float* x, int64_t rows, int64_t width, const float* factor) {
  HWY_DYNAMIC_DISPATCH(ScaleRowsImpl)(x, rows, width, factor);
}

}  // namespace litecache::ops::cpu
#endif
