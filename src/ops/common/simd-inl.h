// Vector helpers that all kernels share, compiled for each Highway target.
#if defined(LITECACHE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LITECACHE_OPS_CPU_SIMD_INL_H_
#undef LITECACHE_OPS_CPU_SIMD_INL_H_
#else
#define LITECACHE_OPS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using F32x1 = hn::CappedTag<float, 1>;

// Calls body(d, i) over [0, n): whole vectors, then single lanes with the same arithmetic.
template <class Body>
HWY_INLINE void ForEachVector(int64_t n, const Body& body) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(F32x1(), i);
}

// Loads Lanes(d) elements as f32.
template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsF32(D d, const f16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

// f32 bits rounded to nearest even at bf16 precision: the upper half of each lane is the bf16.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundToBf16Bits(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto lsb = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(lsb, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::And(hn::IfThenElse(nan, quiet, rounded), hn::Set(du, 0xffff0000u));
}
template <class D>
HWY_INLINE hn::Vec<D> RoundToBf16(D d, hn::Vec<D> v) {
  return hn::BitCast(d, RoundToBf16Bits(d, v));
}
template <class D>
HWY_INLINE void StoreAsBf16(D d, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const auto upper = hn::ShiftRight<16>(RoundToBf16Bits(d, v));
  hn::StoreU(hn::TruncateTo(d16, upper), d16, reinterpret_cast<uint16_t*>(p));
}

// exp(x) for any x, relative error below 3e-7; results under 2^-126 are 0 or 2^-126, NaN stays NaN.
// Range reduction by ln 2 in two parts, then a degree 6 Taylor-like polynomial on |r| <= ln2 / 2.
template <class D>
HWY_INLINE hn::Vec<D> Exp(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto clamped = hn::Min(hn::Max(x, hn::Set(d, -87.0f)), hn::Set(d, 88.0f));
  const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(hn::Mul(p, r), r, hn::Add(r, hn::Set(d, 1.0f)));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, n));
  const auto result = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // target toggle
