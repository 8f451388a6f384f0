#include "ops/dense/rope_cpu.h"

#include <cmath>

#include "ops/common/row_grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dense/rope_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void RotateHeads(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosines,
                 const float* sines) {
  for (int64_t h = 0; h < heads; ++h) {
    float* lower = x + h * head_dim;
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

void RotateNeighbours(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosines,
                      const float* sines) {
  for (int64_t h = 0; h < heads; ++h) {
    float* head = x + h * head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = a * cosines[i] - b * sines[i];
      head[2 * i + 1] = b * cosines[i] + a * sines[i];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(RotateHeads);
HWY_EXPORT(RotateNeighbours);

void RopeRotations(ThreadPool& pool, std::span<const int32_t> positions,
                   std::span<const float> inv_freq, float scale, const RopeGrowth& growth,
                   const MatrixView& rotations) {
  const auto half = static_cast<int64_t>(inv_freq.size());
  pool.ParallelFor(rotations.rows, RowGrain(64 * half), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* cosines = rotations.Row<float>(t);
      const int32_t position = positions[static_cast<size_t>(t)];
      const float steps = std::floor(static_cast<float>(position) / growth.step);
      const float grown = scale * (1 + growth.beta * std::log1p(steps));
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position) * static_cast<double>(inv_freq[static_cast<size_t>(i)]);
        cosines[i] = static_cast<float>(grown * std::cos(angle));
        cosines[half + i] = static_cast<float>(grown * std::sin(angle));
      }
    }
  });
}

void Rope(ThreadPool& pool, const MatrixView& x, const MatrixView& rotations, int64_t heads,
          RopePairs pairs) {
  const auto rotate = pairs == RopePairs::kHalves ? HWY_DYNAMIC_DISPATCH(RotateHeads)
                                                  : HWY_DYNAMIC_DISPATCH(RotateNeighbours);
  const int64_t half = rotations.cols / 2, head_dim = x.cols / heads;
  pool.ParallelFor(x.rows, RowGrain(x.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cosines = rotations.Row<float>(t);
      rotate(x.Row<float>(t), heads, head_dim, half, cosines, cosines + half);
    }
  });
}

}  // namespace litecache::ops::cpu
#endif
