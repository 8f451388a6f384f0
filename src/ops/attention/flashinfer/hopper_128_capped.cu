#include "ops/attention/flashinfer/hopper.h"
#include "ops/attention/flashinfer/hopper_kernel.cuh"

namespace litecache::ops::cuda {

void HopperAttention128Capped(CudaStream& stream, const StepView& step, int64_t kv_heads,
                              const RowTable& table, const AttentionOperands& operands) {
  LaunchHopper<128, true>(stream, step, kv_heads, table, operands);
}

}  // namespace litecache::ops::cuda
