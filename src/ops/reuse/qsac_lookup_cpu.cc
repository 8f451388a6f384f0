#include "ops/reuse/qsac_lookup_cpu.h"

#include <algorithm>
#include <cmath>

#include "ops/common/row_grain.h"
#include "ops/common/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/reuse/qsac_lookup_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// q.label, q.q, label.label. Equal vectors give three equal sums, and so a cosine of exactly 1.
void Products(const float* q, const float* label, int64_t n, float* products) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto dot = hn::Zero(d), qq = dot, ll = dot;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::LoadU(d, q + i), y = hn::LoadU(d, label + i);
    dot = hn::MulAdd(x, y, dot);
    qq = hn::MulAdd(x, x, qq);
    ll = hn::MulAdd(y, y, ll);
  }
  const F32x1 d1;
  auto dot1 = hn::Zero(d1), qq1 = dot1, ll1 = dot1;
  for (; i < n; ++i) {
    const auto x = hn::LoadU(d1, q + i), y = hn::LoadU(d1, label + i);
    dot1 = hn::MulAdd(x, y, dot1);
    qq1 = hn::MulAdd(x, x, qq1);
    ll1 = hn::MulAdd(y, y, ll1);
  }
  products[0] = hn::GetLane(hn::SumOfLanes(d, dot)) + hn::GetLane(dot1);
  products[1] = hn::GetLane(hn::SumOfLanes(d, qq)) + hn::GetLane(qq1);
  products[2] = hn::GetLane(hn::SumOfLanes(d, ll)) + hn::GetLane(ll1);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {
namespace {

// Squares in this range are accurate: no significant term was lost below f32's range, and no sum
// overflowed.
constexpr float kSmallestSquare = 1e-24f, kLargestSquare = 1e37f;

// For vectors of any finite size: they are scaled to 1 before squaring.
double ScaledCosine(const float* q, const float* label, int64_t n) {
  const auto largest = [n](const float* x) {
    double result = 0;
    for (int64_t i = 0; i < n; ++i) result = std::max<double>(result, std::abs(x[i]));
    return result;
  };
  const double q_size = largest(q), label_size = largest(label);
  if (q_size == 0 || label_size == 0) return 0;
  double dot = 0, qq = 0, ll = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = q[i] / q_size, y = label[i] / label_size;
    dot += x * y;
    qq += x * x;
    ll += y * y;
  }
  return dot / std::sqrt(qq * ll);
}

}  // namespace

HWY_EXPORT(Products);

static float Cosine(const float* q, const float* label, int64_t n) {
  float products[3];
  HWY_DYNAMIC_DISPATCH(Products)(q, label, n, products);
  const auto trusted = [](float square) {
    return square >= kSmallestSquare && square <= kLargestSquare;
  };
  const double cosine =
      trusted(products[1]) && trusted(products[2])
          ? products[0] / std::sqrt(static_cast<double>(products[1]) * products[2])
          : ScaledCosine(q, label, n);
  // A NaN counts as a miss for any threshold.
  if (std::isnan(cosine)) return -1.0f;
  return static_cast<float>(std::clamp(cosine, -1.0, 1.0));
}

void QsacLookup(ThreadPool& pool, int64_t group, int64_t head_dim, Aggregation aggregation,
                std::span<LookupWork> work) {
  pool.ParallelFor(static_cast<int64_t>(work.size()), RowGrain(group * head_dim),
                   [&](int64_t begin, int64_t end, int) {
                     static thread_local Scratch scratch;
                     auto* similarities = scratch.Reserve<float>(static_cast<size_t>(group));
                     for (int64_t i = begin; i < end; ++i) {
                       LookupWork& w = work[static_cast<size_t>(i)];
                       for (int64_t j = 0; j < group; ++j) {
                         similarities[j] =
                             Cosine(w.q + j * head_dim, w.label + j * head_dim, head_dim);
                       }
                       w.similarity = AggregateSimilarity(
                           aggregation, {similarities, static_cast<size_t>(group)}, w.importance);
                       w.hit = w.similarity > w.tau;
                       if (!w.hit) std::copy_n(w.q, group * head_dim, w.label);
                     }
                   });
}

}  // namespace litecache::ops::cpu
#endif
