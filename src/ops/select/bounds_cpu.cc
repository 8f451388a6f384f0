#include "ops/select/bounds_cpu.h"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/bounds_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void MinMax(const float* x, int64_t stride, int64_t rows, int64_t head_dim, float* low,
            float* high) {
  ForEachVector(head_dim, [=](auto d, int64_t c) HWY_ATTR {
    auto least = hn::LoadU(d, x + c);
    auto greatest = least;
    for (int64_t r = 1; r < rows; ++r) {
      const auto v = hn::LoadU(d, x + r * stride + c);
      least = hn::Min(least, v);
      greatest = hn::Max(greatest, v);
    }
    hn::StoreU(least, d, low + c);
    hn::StoreU(greatest, d, high + c);
  });
}

template <int kHeads>
HWY_INLINE void ScoreHeads(const uint32_t* group, int64_t head_dim, const float* positive,
                           const float* negative, float* scores, int64_t stride) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto upper = hn::Set(du, 0xffff0000u);
  for (int64_t b = 0; b < BoundsFormat::kGroup; b += lanes) {
    hn::Vec<F32> high[kHeads], low[kHeads];
    for (int j = 0; j < kHeads; ++j) high[j] = low[j] = hn::Zero(d);
    for (int64_t c = 0; c < head_dim; ++c) {
      const auto pair = hn::LoadU(du, group + c * BoundsFormat::kGroup + b);
      const auto least = hn::BitCast(d, hn::ShiftLeft<16>(pair));
      const auto greatest = hn::BitCast(d, hn::And(pair, upper));
      for (int j = 0; j < kHeads; ++j) {
        high[j] = hn::MulAdd(greatest, hn::Set(d, positive[j * head_dim + c]), high[j]);
        low[j] = hn::MulAdd(least, hn::Set(d, negative[j * head_dim + c]), low[j]);
      }
    }
    for (int j = 0; j < kHeads; ++j) {
      hn::StoreU(hn::Add(high[j], low[j]), d, scores + j * stride + b);
    }
  }
}

void ScoreGroup(const uint32_t* group, int64_t head_dim, const float* positive,
                const float* negative, int64_t heads, float* scores, int64_t stride) {
  int64_t j = 0;
  for (; j + 4 <= heads; j += 4) {
    ScoreHeads<4>(group, head_dim, positive + j * head_dim, negative + j * head_dim,
                  scores + j * stride, stride);
  }
  for (; j < heads; ++j) {
    ScoreHeads<1>(group, head_dim, positive + j * head_dim, negative + j * head_dim,
                  scores + j * stride, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {
namespace {

// The bf16 bits of the smallest number not below x, and of the largest not above x.
uint32_t RoundUp(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return ((bits >> 31) != 0 ? bits : bits + 0xffffu) >> 16;
}
uint32_t RoundDown(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return ((bits >> 31) != 0 ? bits + 0xffffu : bits) >> 16;
}

}  // namespace

HWY_EXPORT(MinMax);
HWY_EXPORT(ScoreGroup);

void MinMaxRows(const float* x, int64_t stride, int64_t rows, int64_t head_dim, float* low,
                float* high) {
  HWY_DYNAMIC_DISPATCH(MinMax)(x, stride, rows, head_dim, low, high);
}

void StoreBounds(const float* low, const float* high, int64_t head_dim, int64_t index, bool start,
                 uint32_t* group) {
  for (int64_t c = 0; c < head_dim; ++c) {
    uint32_t& pair = group[c * BoundsFormat::kGroup + index];
    float least = low[c], greatest = high[c];
    if (!start) {
      least = std::min(least, std::bit_cast<float>(pair << 16));
      greatest = std::max(greatest, std::bit_cast<float>(pair & 0xffff0000u));
    }
    pair = RoundDown(least) | RoundUp(greatest) << 16;
  }
}

void BoundsScores(const uint32_t* group, int64_t head_dim, const float* positive,
                  const float* negative, int64_t heads, float* scores, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(ScoreGroup)(group, head_dim, positive, negative, heads, scores, stride);
}

}  // namespace litecache::ops::cpu
#endif
