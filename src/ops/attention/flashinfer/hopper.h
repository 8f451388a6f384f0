// Launches of flashinfer/hopper_kernel.cuh. The bf16 queries are in operands.out, which the
// attention overwrites.
#pragma once

#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_kernels_cuda.h"

namespace litecache::ops::cuda {

using HopperLaunch = void(CudaStream& stream, const StepView& step, int64_t kv_heads,
                          const RowTable& table, const AttentionOperands& operands);

HopperLaunch HopperAttention64, HopperAttention128, HopperAttention256;
// With a cap of scores, which the others do not take.
HopperLaunch HopperAttention128Capped, HopperAttention256Capped;

}  // namespace litecache::ops::cuda
