#include "base/block_layout.h"
#include "ops/common/avx2_target.h"
#include "ops/linear/quantized/kernels_cpu.h"

#if defined(__x86_64__)

#define LC_QUANTIZED_NAMESPACE quantized_avx2
LC_BEGIN_AVX2
// Its files are compiled once for each set of instructions.
#include "ops/linear/quantized/kernels_cpu-inl.h"
LC_END_AVX2
#undef LC_QUANTIZED_NAMESPACE

namespace litecache::ops::cpu {
const QuantizedKernels kAvx2QuantizedKernels = {
    .lanes = quantized_avx2::kLanes, .gemv = quantized_avx2::Gemv, .gemm = quantized_avx2::Gemm};
}  // namespace litecache::ops::cpu

#endif
