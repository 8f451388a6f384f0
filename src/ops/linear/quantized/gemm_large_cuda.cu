// The kernel for 9 and more rows, for formats whose blocks have 256 values.
#include "ops/linear/quantized/gemm_launch.cuh"

namespace litecache::ops::cuda::quantized {

template void LaunchGemmLayout<PackedLayoutOf("Q2_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q3_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q4_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q5_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("Q6_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchGemmLayout<PackedLayoutOf("IQ4_XS")>(CudaStream&, const Arguments&, int32_t);

}  // namespace litecache::ops::cuda::quantized
