#include "lab/policies/common/points_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/policies/common/points_cpu.cc"
#include "hwy/foreach_target.h"
// Highway's header must come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::lab::ops::cpu {
namespace HWY_NAMESPACE {
using namespace litecache::ops::cpu::HWY_NAMESPACE;  // NOLINT: simd-inl.h

template <class T>
void CenterOf(const T* x, const float* center, int64_t n, float* out) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto v = LoadAsF32(d, x + i);
    hn::StoreU(center == nullptr ? v : hn::Sub(v, hn::LoadU(d, center + i)), d, out + i);
  });
}

void Center(DType dtype, const std::byte* x, const float* center, int64_t n, float* out) {
  if (dtype == DType::kBF16) return CenterOf(reinterpret_cast<const bf16*>(x), center, n, out);
  CenterOf(reinterpret_cast<const float*>(x), center, n, out);
}

void Add(const float* x, int64_t n, float* sums) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, x + i)), d, sums + i);
  });
}

void Best(const float* sums, int64_t rows, int64_t width, const float* bias, int32_t first,
          float* best, int32_t* index) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < width; i += lanes) {
    auto highest = hn::LoadU(d, best + i);
    auto where = hn::LoadU(di, index + i);
    for (int64_t r = 0; r < rows; ++r) {
      auto v = hn::LoadU(d, sums + r * width + i);
      if (bias != nullptr) v = hn::Add(v, hn::Set(d, bias[r]));
      const auto above = hn::Gt(v, highest);
      highest = hn::IfThenElse(above, v, highest);
      where = hn::IfThenElse(hn::RebindMask(di, above),
                             hn::Set(di, first + static_cast<int32_t>(r)), where);
    }
    hn::StoreU(highest, d, best + i);
    hn::StoreU(where, di, index + i);
  }
}

template <class D, class T, int kHeads>
HWY_INLINE void WeightedTile(D d, const std::byte* const* values, int64_t rows, int64_t column,
                             const float* weights, int64_t stride, int64_t n, float* out) {
  hn::Vec<D> sum[kHeads];
  for (int j = 0; j < kHeads; ++j) sum[j] = hn::LoadU(d, out + j * n + column);
  for (int64_t r = 0; r < rows; ++r) {
    const auto v = LoadAsF32(d, reinterpret_cast<const T*>(values[r]) + column);
    for (int j = 0; j < kHeads; ++j) {
      sum[j] = hn::MulAdd(v, hn::Set(d, weights[j * stride + r]), sum[j]);
    }
  }
  for (int j = 0; j < kHeads; ++j) hn::StoreU(sum[j], d, out + j * n + column);
}

template <class T, int kHeads>
HWY_INLINE void WeightedHeads(const std::byte* const* values, int64_t rows, const float* weights,
                              int64_t stride, int64_t n, float* out) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    WeightedTile<decltype(d), T, kHeads>(d, values, rows, i, weights, stride, n, out);
  });
}

template <class T>
void WeightedOf(const std::byte* const* values, int64_t rows, const float* weights, int64_t stride,
                int64_t heads, int64_t n, float* out) {
  int64_t j = 0;
  for (; j + 4 <= heads; j += 4) {
    WeightedHeads<T, 4>(values, rows, weights + j * stride, stride, n, out + j * n);
  }
  for (; j < heads; ++j) {
    WeightedHeads<T, 1>(values, rows, weights + j * stride, stride, n, out + j * n);
  }
}

void Weighted(DType dtype, const std::byte* const* values, int64_t rows, const float* weights,
              int64_t stride, int64_t heads, int64_t n, float* out) {
  if (dtype == DType::kBF16) {
    return WeightedOf<bf16>(values, rows, weights, stride, heads, n, out);
  }
  WeightedOf<float>(values, rows, weights, stride, heads, n, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::lab::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::lab::ops::cpu {

HWY_EXPORT(Center);
HWY_EXPORT(Add);
HWY_EXPORT(Best);
HWY_EXPORT(Weighted);

void CenterPoint(DType dtype, const std::byte* x, const float* center, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Center)(dtype, x, center, n, out);
}

void AddPoint(const float* x, int64_t n, float* sums) { HWY_DYNAMIC_DISPATCH(Add)(x, n, sums); }

void BestRows(const float* sums, int64_t rows, int64_t width, const float* bias, int32_t first,
              float* best, int32_t* index) {
  HWY_DYNAMIC_DISPATCH(Best)(sums, rows, width, bias, first, best, index);
}

void AddWeighted(DType dtype, const std::byte* const* values, int64_t rows, const float* weights,
                 int64_t stride, int64_t heads, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Weighted)(dtype, values, rows, weights, stride, heads, n, out);
}

}  // namespace litecache::lab::ops::cpu
#endif
