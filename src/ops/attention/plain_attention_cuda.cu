// Attention of any head_dim in bf16 or f32, with f32 arithmetic: one block per query head of a row;
// its warps take rows in turn, and a lane handles every 32nd element. Written for correctness
// rather than speed: models served on a GPU have bf16 rows and a head_dim that tensor cores
// support, up to 256 or, but for cached slots of bf16 rows, 512.
#include <cuda_bf16.h>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_arrays.cuh"
#include "ops/common/online_softmax.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr unsigned kAll = 0xffffffffu;

struct PlainProblem {
  AttendedTables tables;
  AttentionArrays arrays;
};

// kMost: of head_dim.
template <typename T, int kMost>
__global__ void __launch_bounds__(kThreads) PlainKernel(const __grid_constant__ PlainProblem p) {
  constexpr int kShare = kMost / 32;
  const AttentionArrays& a = p.arrays;
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ float values[kWarps][kMost];
  const auto row = static_cast<int32_t>(blockIdx.x), query_head = static_cast<int32_t>(blockIdx.y);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t index = SequenceOfRow(p.tables.step, row);
  if (index < 0) return;
  const StepSequence& sequence = p.tables.step.sequences[index];
  const AttendedRows rows =
      p.tables.Of(index, query_head / a.group, sequence.past + row - sequence.first_row + 1);
  if (rows.total == 0) return;
  float q[kShare] = {}, out[kShare] = {};
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int c = i * 32 + lane;
    if (c < a.head_dim) q[i] = a.q[row * a.q_stride + query_head * a.head_dim + c] * a.scale;
  }
  float maximum = -kLargestScore, sum = 0;
  for (int32_t r = warp; r < rows.total; r += kWarps) {
    const auto* k = reinterpret_cast<const T*>(rows.Row(r));
    if (k == nullptr) continue;
    const T* v = k + a.head_dim;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int c = i * 32 + lane;
      if (c < a.head_dim) score += q[i] * static_cast<float>(k[c]);
    }
    for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(kAll, score, step);
    a.cap.Apply(score);
    const float highest = fminf(fmaxf(maximum, score), kLargestScore);
    const float factor = Exp2(maximum - highest);
    const float probability = CarefulExp2(score - highest);
    maximum = highest;
    sum = sum * factor + probability;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int c = i * 32 + lane;
      if (c < a.head_dim) out[i] = out[i] * factor + probability * static_cast<float>(v[c]);
    }
  }
  if (lane == 0) {
    maxima[warp] = maximum;
    sums[warp] = sum;
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) values[warp][i * 32 + lane] = out[i];
  __syncthreads();
  float highest = maxima[0];
  for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, maxima[w]);
  for (int c = threadIdx.x; c < a.head_dim; c += kThreads) {
    float total = 0, value = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = Exp2(maxima[w] - highest);
      total += factor * sums[w];
      value += factor * values[w][c];
    }
    const int32_t column = query_head * a.head_dim;
    a.Store(row, column + c, value / a.WithSink(column, highest, total));
    if (c == 0) a.StoreLogSum(row, column, highest, total);
  }
}

}  // namespace

void PlainAttention(Stream& stream, const AttendedTables& tables,
                    const AttentionOperands& operands) {
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  PlainProblem p;
  p.tables = tables;
  p.arrays = AttentionArrays(operands, tables.kv_heads, table.format.head_dim);
  // A grid has 65,535 blocks at most in y: a prompt may have more rows.
  const dim3 grid(static_cast<unsigned>(operands.q.rows), static_cast<unsigned>(operands.q_heads));
  const bool small = p.arrays.head_dim <= 256;
  const auto of_bf16 = small ? PlainKernel<__nv_bfloat16, 256> : PlainKernel<__nv_bfloat16, 512>;
  const auto of_f32 = small ? PlainKernel<float, 256> : PlainKernel<float, 512>;
  const auto kernel = table.format.encoding == RowEncoding::kBF16 ? of_bf16 : of_f32;
  kernel<<<grid, kThreads, 0, AsCuda(stream).handle()>>>(p);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
