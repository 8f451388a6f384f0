#include <type_traits>

#include "base/block_layout.h"
#include "ops/common/avx2_target.h"
#include "ops/linear/quantized/kernels_cpu.h"

#if defined(__x86_64__)

#define LC_QUANTIZED_NAMESPACE quantized_avx512
#define LC_QUANTIZED_VNNI
LC_BEGIN_AVX512_VNNI
// Its files are compiled once for each set of instructions.
#include "ops/linear/quantized/kernels_cpu-inl.h"
LC_END_AVX512_VNNI
#undef LC_QUANTIZED_VNNI
#undef LC_QUANTIZED_NAMESPACE

namespace litecache::ops::cpu {
const QuantizedKernels kAvx512VnniQuantizedKernels = {.lanes = quantized_avx512::kLanes,
                                                      .arrange = quantized_avx512::Arrange,
                                                      .gemv = quantized_avx512::Gemv,
                                                      .gemm = quantized_avx512::Gemm};
}  // namespace litecache::ops::cpu

#endif
