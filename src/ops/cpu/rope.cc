#include <cmath>

#include "ops/cpu/ops.h"
#include "ops/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cc"
#include "hwy/foreach_target.h"
// Highway's header comes after foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void RotateHeads(float* x, int64_t heads, int64_t half, const float* cosines, const float* sines) {
  for (int64_t h = 0; h < heads; ++h) {
    float* lower = x + h * 2 * half;
    float* upper = lower + half;
    ForEachVector(half, [=](auto d, int64_t i) HWY_ATTR {
      const auto c = hn::LoadU(d, cosines + i);
      const auto s = hn::LoadU(d, sines + i);
      const auto a = hn::LoadU(d, lower + i);
      const auto b = hn::LoadU(d, upper + i);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, lower + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, upper + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(RotateHeads);

void Rope(ThreadPool& pool, const MatrixView& x, std::span<const int32_t> positions, int64_t heads,
          std::span<const float> inv_freq, float scale) {
  const auto rotate = HWY_DYNAMIC_DISPATCH(RotateHeads);
  const auto half = static_cast<int64_t>(inv_freq.size());
  // A sine and a cosine in double cost about 40 ns, as much as rotating some hundred elements; one
  // pair serves all heads of a token.
  pool.ParallelFor(x.rows, RowGrain(x.cols + 64 * half), [&](int64_t begin, int64_t end, int) {
    static thread_local Scratch scratch;
    auto* cosines = scratch.Reserve<float>(static_cast<size_t>(2 * half));
    float* sines = cosines + half;
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[t]) * static_cast<double>(inv_freq[i]);
        cosines[i] = static_cast<float>(scale * std::cos(angle));
        sines[i] = static_cast<float>(scale * std::sin(angle));
      }
      rotate(x.Row<float>(t), heads, half, cosines, sines);
    }
  });
}

}  // namespace litecache::ops::cpu
#endif
