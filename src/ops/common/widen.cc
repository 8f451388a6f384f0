#include "ops/common/widen.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/widen.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void CopyRow(const T* src, int64_t n, float* dst) {
  ForEachVector(n,
                [=](auto d, int64_t i) HWY_ATTR { hn::StoreU(LoadAsF32(d, src + i), d, dst + i); });
}
template <typename T>
void AddRow(const T* src, int64_t n, float* dst) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, dst + i), LoadAsF32(d, src + i)), d, dst + i);
  });
}

void CopyF16(const f16* src, int64_t n, float* dst) { CopyRow(src, n, dst); }
void CopyBf16(const bf16* src, int64_t n, float* dst) { CopyRow(src, n, dst); }
void AddF16(const f16* src, int64_t n, float* dst) { AddRow(src, n, dst); }
void AddBf16(const bf16* src, int64_t n, float* dst) { AddRow(src, n, dst); }
void AddF32(const float* src, int64_t n, float* dst) { AddRow(src, n, dst); }
void NarrowRow(const float* src, int64_t n, bf16* dst) {
  ForEachVector(
      n, [=](auto d, int64_t i) HWY_ATTR { StoreAsBf16(d, hn::LoadU(d, src + i), dst + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(CopyF16);
HWY_EXPORT(CopyBf16);
HWY_EXPORT(AddF16);
HWY_EXPORT(AddBf16);
HWY_EXPORT(AddF32);
HWY_EXPORT(NarrowRow);

void Widen(DType dtype, const void* src, int64_t n, float* dst) {
  if (dtype == DType::kBF16) {
    HWY_DYNAMIC_DISPATCH(CopyBf16)(static_cast<const bf16*>(src), n, dst);
  } else if (dtype == DType::kF16) {
    HWY_DYNAMIC_DISPATCH(CopyF16)(static_cast<const f16*>(src), n, dst);
  } else {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
  }
}

void WidenAdd(DType dtype, const void* src, int64_t n, float* dst) {
  if (dtype == DType::kBF16) {
    HWY_DYNAMIC_DISPATCH(AddBf16)(static_cast<const bf16*>(src), n, dst);
  } else if (dtype == DType::kF16) {
    HWY_DYNAMIC_DISPATCH(AddF16)(static_cast<const f16*>(src), n, dst);
  } else {
    HWY_DYNAMIC_DISPATCH(AddF32)(static_cast<const float*>(src), n, dst);
  }
}

void NarrowToBf16(const float* src, int64_t n, bf16* dst) {
  HWY_DYNAMIC_DISPATCH(NarrowRow)(src, n, dst);
}

}  // namespace litecache::ops::cpu
#endif
