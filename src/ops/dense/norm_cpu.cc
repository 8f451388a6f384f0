#include "ops/dense/norm_cpu.h"

#include <cmath>

#include "ops/common/row_grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dense/norm_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// The sum of f(x[i]), in four chains to hide the latency of additions.
template <class F>
HWY_INLINE float SumOf(const float* x, int64_t n, const F& f) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, f(d, hn::LoadU(d, x + i)));
    s1 = hn::Add(s1, f(d, hn::LoadU(d, x + i + lanes)));
    s2 = hn::Add(s2, f(d, hn::LoadU(d, x + i + 2 * lanes)));
    s3 = hn::Add(s3, f(d, hn::LoadU(d, x + i + 3 * lanes)));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, f(d, hn::LoadU(d, x + i)));
  float tail = 0;
  const F32x1 d1;
  for (; i < n; ++i) tail += hn::GetLane(f(d1, hn::LoadU(d1, x + i)));
  const auto sum = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  return hn::GetLane(hn::SumOfLanes(d, sum)) + tail;
}

void RmsNormRow(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const float squares = SumOf(x, n, [](auto, auto v) HWY_ATTR { return hn::Mul(v, v); });
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor));
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, y + i);
  });
}

void LayerNormRow(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                  float* y) {
  const float mean = SumOf(x, n, [](auto, auto v) HWY_ATTR { return v; }) / static_cast<float>(n);
  // Two passes: computed from a difference of sums, the variance would suffer from cancellation.
  const float squares = SumOf(x, n, [=](auto d, auto v) HWY_ATTR {
    const auto c = hn::Sub(v, hn::Set(d, mean));
    return hn::Mul(c, c);
  });
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    const auto scaled = hn::Mul(centred, hn::Set(d, factor));
    const auto added = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + i);
    hn::StoreU(hn::MulAdd(scaled, hn::LoadU(d, weight + i), added), d, y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(LayerNormRow);

void RmsNorm(ThreadPool& pool, const MatrixView& x, const float* weight, float eps, int64_t groups,
             const MatrixView& y) {
  const auto row = HWY_DYNAMIC_DISPATCH(RmsNormRow);
  const int64_t n = x.cols / groups;
  pool.ParallelFor(x.rows, RowGrain(x.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t g = 0; g < groups; ++g) {
        row(x.Row<float>(t) + g * n, weight, eps, n, y.Row<float>(t) + g * n);
      }
    }
  });
}

void LayerNorm(ThreadPool& pool, const MatrixView& x, const float* weight, const float* bias,
               float eps, const MatrixView& y) {
  const auto row = HWY_DYNAMIC_DISPATCH(LayerNormRow);
  pool.ParallelFor(x.rows, RowGrain(x.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      row(x.Row<float>(t), weight, bias, eps, x.cols, y.Row<float>(t));
    }
  });
}

}  // namespace litecache::ops::cpu
#endif
