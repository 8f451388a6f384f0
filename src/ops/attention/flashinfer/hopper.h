// Launches of flashinfer/hopper_kernel.cuh. Queries in bf16 lie in operands.out, which the
// attention replaces.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_kernels_cuda.h"

namespace litecache::ops::cuda {

using HopperLaunch = void(CudaStream& stream, const StepView& step, int64_t kv_heads,
                          const RowTable& table, const AttentionOperands& operands);

HopperLaunch HopperAttention64, HopperAttention128, HopperAttention256;

}  // namespace litecache::ops::cuda
