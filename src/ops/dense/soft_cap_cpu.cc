#include "ops/dense/soft_cap_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dense/soft_cap_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/exp2-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void SoftCapImpl(float* x, int64_t count, float cap) {
  // tanh(|y|) = (1 - e) / (1 + e) with e = exp(-2 |y|) <= 1.
  const float exponent = -2 * 1.44269504f / cap;
  ForEachVector(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i), one = hn::Set(d, 1.0f);
    const auto e = Exp2(d, hn::Mul(hn::Abs(value), hn::Set(d, exponent)));
    const auto tanh = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    const auto capped = hn::CopySign(hn::Mul(hn::Set(d, cap), tanh), value);
    // Exp2 has no NaN.
    hn::StoreU(hn::IfThenElse(hn::IsNaN(value), value, capped), d, x + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(SoftCapImpl);

void SoftCap(float* x, int64_t count, float cap) {
  HWY_DYNAMIC_DISPATCH(SoftCapImpl)(x, count, cap);
}

}  // namespace litecache::ops::cpu
#endif
