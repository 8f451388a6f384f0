// The kernel for experts' packed blocks of formats whose blocks have 256 values.
#include "ops/experts/quantized_experts_launch.cuh"

namespace litecache::ops::cuda::quantized {

template void LaunchExpertsLayout<PackedLayoutOf("Q2_K")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q3_K")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q4_K")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q5_K")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("Q6_K")>(CudaStream&, const ExpertArguments&);
template void LaunchExpertsLayout<PackedLayoutOf("IQ4_XS")>(CudaStream&, const ExpertArguments&);

}  // namespace litecache::ops::cuda::quantized
