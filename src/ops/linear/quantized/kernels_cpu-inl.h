// The kernels of quantized weights for one set of instructions. The including file defines
// LC_QUANTIZED_NAMESPACE, and LC_QUANTIZED_VNNI for AVX-512 with VNNI instead of AVX2; it has
// included everything that the kernels need, and enabled the instructions (avx2_target.h).

#define LC_INLINE inline __attribute__((always_inline))

// Unpacking first, the others use it.
// clang-format off
#include "ops/linear/quantized/unpack_cpu-inl.h"
#include "ops/linear/quantized/vectors_cpu-inl.h"
#if defined(LC_QUANTIZED_VNNI)
#include "ops/linear/quantized/dots_vnni_cpu-inl.h"
#else
#include "ops/linear/quantized/dots_avx2_cpu-inl.h"
#endif
#include "ops/linear/quantized/gemv_cpu-inl.h"
#include "ops/linear/quantized/gemm_cpu-inl.h"
// clang-format on

namespace litecache::ops::cpu {
namespace LC_QUANTIZED_NAMESPACE {

// Calls use(pointer to the format), by ggml's number.
template <class Use>
inline void WithFormat(const BlockFormat& format, const Use& use) {
  switch (format.type) {
    case 2:
      return use(static_cast<Q4_0*>(nullptr));
    case 3:
      return use(static_cast<Q4_1*>(nullptr));
    case 6:
      return use(static_cast<Q5_0*>(nullptr));
    case 7:
      return use(static_cast<Q5_1*>(nullptr));
    case 8:
      return use(static_cast<Q8_0*>(nullptr));
    case 10:
      return use(static_cast<Q2_K*>(nullptr));
    case 11:
      return use(static_cast<Q3_K*>(nullptr));
    case 12:
      return use(static_cast<Q4_K*>(nullptr));
    case 13:
      return use(static_cast<Q5_K*>(nullptr));
    case 14:
      return use(static_cast<Q6_K*>(nullptr));
    case 20:
      return use(static_cast<IQ4_NL*>(nullptr));
    case 23:
      return use(static_cast<IQ4_XS*>(nullptr));
    case 39:
      return use(static_cast<MXFP4*>(nullptr));
    default:
      UnknownBlocks(format);
  }
}

inline void Gemv(const QuantizedGemvArguments& a) {
  WithFormat(*a.format, [&]<class Format>(Format*) { GemvTokens<Format>(a); });
}

inline void Gemm(const QuantizedGemmArguments& a) {
  WithFormat(*a.format, [&]<class Format>(Format*) { GemmPanels<Format>(a); });
}

}  // namespace LC_QUANTIZED_NAMESPACE
}  // namespace litecache::ops::cpu

#undef LC_INLINE
