// The kernel for 9 and more rows, for formats whose blocks have 32 values.
#include "ops/linear/quantized/gemm_launch.cuh"

namespace litecache::ops::cuda::quantized {

template void LaunchGemmLayout<PackedLayoutOf("Q4_0")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q4_1")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q5_0")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q5_1")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q8_0")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("MXFP4")>(CudaStream&, const Arguments&, int32_t);

}  // namespace litecache::ops::cuda::quantized
