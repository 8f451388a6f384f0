// Attention of a prompt chunk on Hopper with FlashInfer's kernel: rounds the queries, then launches
// flashinfer/hopper_kernel.cuh, compiled for each head dimension.
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_arrays.cuh"
#include "ops/attention/flashinfer/hopper.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kMostThreads = 512;

// Writes bf16 queries to the place of their outputs, for the heads in the table.
__global__ void RoundQueriesKernel(const StepView step, const AttentionArrays a,
                                   const int32_t* list_of_head) {
  if (static_cast<int32_t>(blockIdx.y) >= *step.count) return;
  const StepSequence& sequence = step.sequences[blockIdx.y];
  if (static_cast<int32_t>(blockIdx.x) >= sequence.rows) return;
  const int64_t row = sequence.first_row + static_cast<int32_t>(blockIdx.x);
  const float* q = a.q + row * a.q_stride;
  auto* out = static_cast<__nv_bfloat16*>(a.out) + row * a.out_stride;
  for (int32_t c = static_cast<int32_t>(threadIdx.x) * 8; c < a.q_heads * a.head_dim;
       c += static_cast<int32_t>(blockDim.x) * 8) {
    if (list_of_head[c / a.head_dim / a.group] < 0) continue;
    const float4 low = *reinterpret_cast<const float4*>(q + c);
    const float4 high = *reinterpret_cast<const float4*>(q + c + 4);
    *reinterpret_cast<uint4*>(out + c) =
        make_uint4(PackBf16(low.x, low.y), PackBf16(low.z, low.w), PackBf16(high.x, high.y),
                   PackBf16(high.z, high.w));
  }
}

// The kernels use instructions that only sm_90 has.
bool OnHopper() {
  int device = 0, major = 0, minor = 0;
  LC_CUDA(cudaGetDevice(&device));
  LC_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  LC_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
}

bool Aligned(const MatrixView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         static_cast<size_t>(view.stride) * SizeOf(view.dtype) % 16 == 0;
}

}  // namespace

bool HopperAttentionServes(const RowTable& table, const AttentionOperands& operands) {
  const int64_t head_dim = table.format.head_dim;
  // Of models with a cap of scores, none has heads of 64.
  return ((head_dim == 64 && operands.cap == 0) || head_dim == 128 || head_dim == 256) &&
         table.page_rows % 8 == 0 && operands.out.dtype == DType::kBF16 && Aligned(operands.q) &&
         Aligned(operands.out) && OnHopper();
}

void HopperAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     const AttentionOperands& operands) {
  const AttentionArrays arrays(operands, kv_heads, table.format.head_dim);
  CudaStream& cuda = AsCuda(stream);
  const int threads = std::min(kMostThreads, static_cast<int>(operands.out.cols / 8));
  const dim3 grid(static_cast<unsigned>(step.max_rows), static_cast<unsigned>(step.capacity));
  LC_CHECK(grid.y <= 65535, "too many sequences in one step");
  RoundQueriesKernel<<<grid, threads, 0, cuda.handle()>>>(step, arrays, table.list_of_head);
  LC_CUDA_LAUNCHED();
  const auto launch = arrays.head_dim == 64    ? HopperAttention64
                      : arrays.head_dim == 128 ? HopperAttention128
                                               : HopperAttention256;
  const auto capped = arrays.head_dim == 128 ? HopperAttention128Capped : HopperAttention256Capped;
  (operands.cap == 0 ? launch : capped)(cuda, step, kv_heads, table, operands);
}

}  // namespace litecache::ops::cuda
