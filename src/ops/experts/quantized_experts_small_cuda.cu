// The kernel for experts' packed blocks of formats whose blocks have 32 values.
#include "ops/experts/quantized_experts_launch.cuh"

namespace litecache::ops::cuda::quantized {

template void LaunchExpertsLayout<PackedLayoutOf("Q4_0")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q4_1")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q5_0")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q5_1")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q8_0")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("MXFP4")>(CudaStream&, const ExpertArguments&);

}  // namespace litecache::ops::cuda::quantized
