// 2^x, compiled for each Highway target.
#if defined(LITECACHE_OPS_CPU_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LITECACHE_OPS_CPU_EXP2_INL_H_
#undef LITECACHE_OPS_CPU_EXP2_INL_H_
#else
#define LITECACHE_OPS_CPU_EXP2_INL_H_
#endif

#include "hwy/highway.h"
#include "ops/common/exp2_polynomial.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^x for x <= 0 (larger x count as 0), relative error below 3e-7, at least 2^-126; NaN stays NaN,
// because x86's min and max return their second operand then.
template <class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  x = hn::Max(hn::Set(d, -126.0f), hn::Min(hn::Set(d, 0.0f), x));
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the sum's low bits.
  const auto shifted = hn::Add(x, hn::Set(d, 12582912.0f));
  const auto r = hn::Sub(x, hn::Sub(shifted, hn::Set(d, 12582912.0f)));
  auto p = hn::Set(d, kExp2Polynomial[0]);
  for (int i = 1; i < 5; ++i) p = hn::MulAdd(p, r, hn::Set(d, kExp2Polynomial[i]));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // target toggle
