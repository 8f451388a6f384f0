#include "ops/cpu/attention_tile.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_tile.cc"
#include "hwy/foreach_target.h"
// Highway's header comes after foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// Scores are clamped to finite values, so that two infinite ones never meet in a difference.
constexpr float kLargest = std::numeric_limits<float>::max();

bool SoftmaxTileImpl(float* scores, int64_t rows, int64_t width, const int32_t* limits,
                     float* maximum, float* sum, float* factor) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  bool rescale = false;
  for (int64_t l = 0; l < width; l += lanes) {
    const auto old = hn::Load(d, maximum + l);
    auto highest = old;
    if (limits == nullptr) {
      for (int64_t r = 0; r < rows; ++r) {
        highest = hn::Max(highest, hn::Load(d, scores + r * width + l));
      }
    } else {
      const auto limit = hn::LoadU(di, limits + l);
      for (int64_t r = 0; r < rows; ++r) {
        const auto visible = hn::Lt(hn::Set(di, static_cast<int32_t>(r)), limit);
        const auto score = hn::Load(d, scores + r * width + l);
        highest = hn::Max(highest,
                          hn::IfThenElse(hn::RebindMask(d, visible), score, hn::Set(d, -kLargest)));
      }
    }
    highest = hn::Min(highest, hn::Set(d, kLargest));
    auto total = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) {
      const auto score = hn::Load(d, scores + r * width + l);
      const auto bounded = hn::Min(hn::Max(score, hn::Set(d, -kLargest)), hn::Set(d, kLargest));
      auto p = Exp(d, hn::Sub(bounded, highest));
      if (limits != nullptr) {
        const auto limit = hn::LoadU(di, limits + l);
        const auto visible = hn::Lt(hn::Set(di, static_cast<int32_t>(r)), limit);
        p = hn::IfThenElseZero(hn::RebindMask(d, visible), p);
      }
      total = hn::Add(total, p);
      hn::Store(p, d, scores + r * width + l);
    }
    // Before the first visible row the maximum is -kLargest and the sums are 0: any factor does.
    const auto scale = Exp(d, hn::Sub(old, highest));
    rescale |= !hn::AllTrue(d, hn::Eq(scale, hn::Set(d, 1.0f)));
    hn::Store(highest, d, maximum + l);
    hn::Store(scale, d, factor + l);
    hn::Store(hn::MulAdd(hn::Load(d, sum + l), scale, total), d, sum + l);
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
