// The quantized GEMV for formats whose blocks have 32 values.
#include "ops/linear/quantized/gemv_launch.cuh"

namespace litecache::ops::cuda::quantized {

template void LaunchLayout<PackedLayoutOf("Q4_0")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q4_1")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q5_0")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q5_1")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("Q8_0")>(CudaStream&, const Arguments&, int32_t);
template void LaunchLayout<PackedLayoutOf("MXFP4")>(CudaStream&, const Arguments&, int32_t);

}  // namespace litecache::ops::cuda::quantized
