// The quantized GEMV for formats whose blocks have 256 values.
#include "ops/linear/quantized/gemv_launch.cuh"

namespace litecache::ops::cuda::quantized {

template void LaunchLayout<PackedLayoutOf("Q2_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q3_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q4_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q5_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q6_K")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("IQ4_XS")>(CudaStream&, const Arguments&, int32_t);

}  // namespace litecache::ops::cuda::quantized
