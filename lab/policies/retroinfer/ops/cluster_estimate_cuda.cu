// The estimation zone: every selected cluster that is not read counts as its centroid, once per
// token.
#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/retroinfer/ops/wave_pair.cuh"
#include "ops/common/online_softmax.cuh"
#include "ops/common/overlap.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = 4;               // query heads at a time
constexpr int kClusters = 32 / kHeads;  // processed by a warp at a time
constexpr float kLog2E = 1.44269504f;

// Parts per pair: at most as many blocks as the GPU can run at a time.
unsigned PartsOf(const CudaStream& stream, int pairs) {
  constexpr int kBlocksAnSm = 2;
  return static_cast<unsigned>(
      std::clamp(kBlocksAnSm * stream.sm_count() / pairs, 1, kEstimateParts));
}

// A state: maximum (of scores times log2 e), sum, out [head_dim]; the latter two relative to the
// maximum.
__device__ float* StateOf(const WaveShape& shape, const WaveLayer& layer, int32_t pair,
                          int32_t part, int32_t query) {
  const int64_t state = (int64_t{pair} * kEstimateParts + part) * shape.group + query;
  return layer.states + state * (shape.head_dim + 2);
}

// Channels c and c + 1 of the sum of a cluster's values, c even; 0 from head_dim on.
__device__ __forceinline__ float2 SumPair(const RowFormat& format, const std::byte* row, int32_t d,
                                          int32_t c) {
  if (c >= d) return make_float2(0, 0);
  if (d % 2 == 0) {
    if (format.encoding == RowEncoding::kBF16) {
      return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(
          reinterpret_cast<const __nv_bfloat16*>(row) + d + c));
    }
    return *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(row) + d + c);
  }
  return make_float2(WaveElement(format, row, d + c),
                     c + 1 < d ? WaveElement(format, row, d + c + 1) : 0);
}

// One block per (part, pair): a warp takes 8 clusters at a time; for the weights each lane has one
// cluster and head, then all lanes process each cluster's values.
template <int kPairs>
__global__ void __launch_bounds__(kThreads)
    EstimateKernel(const __grid_constant__ StepView step, const __grid_constant__ WaveShape shape,
                   const __grid_constant__ WaveLayer layer,
                   const __grid_constant__ TableAccess access) {
  constexpr int kChannels = 64 * kPairs;
  __shared__ float maxima[kWarps][kHeads], sums[kWarps][kHeads];
  __shared__ float outs[kWarps][kHeads][kChannels];
  const auto part = static_cast<int32_t>(blockIdx.x), parts = static_cast<int32_t>(gridDim.x);
  const auto pair = static_cast<int32_t>(blockIdx.y);
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count) return;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = shape.head_dim;
  const WaveChoice choice = layer.choices[pair];
  const RowList index = access.List(step.sequences[sequence], layer.index.list_of_head[head]);
  const int32_t count = choice.count - choice.retrieved;
  const int32_t* ids = layer.ids + int64_t{pair} * shape.max_chosen + choice.retrieved;
  const auto begin = static_cast<int32_t>(int64_t{count} * part / parts);
  const auto end = static_cast<int32_t>(int64_t{count} * (part + 1) / parts);
  const int32_t mine = lane / kClusters;  // this lane's head of the current ones
  for (int32_t j0 = 0; j0 < shape.group; j0 += kHeads) {
    const bool exists = j0 + mine < shape.group;
    const float* logits =
        layer.logits + (int64_t{pair} * shape.group + j0 + mine) * shape.max_clusters;
    float maximum = -kLargestScore, sum = 0;
    float2 out[kHeads][kPairs];
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) out[j][i] = make_float2(0, 0);
    }
    for (int32_t first = begin + warp * kClusters; first < end; first += kWarps * kClusters) {
      const int32_t at = first + lane % kClusters;
      const bool present = at < end;
      const int32_t id = ids[min(at, end - 1)];
      const float size = static_cast<float>(ClusterSize(index, id));
      const auto row = reinterpret_cast<unsigned long long>(index.Row(id));
      float x = -kLargestScore;
      if (present && exists) x = fmaxf(fminf(logits[id], kLargestScore), -kLargestScore);
      float highest = fmaxf(maximum, x);
#pragma unroll
      for (int offset = 1; offset < kClusters; offset *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(kFullMask, highest, offset));
      }
      const float kept = Exp2(maximum - highest);
      maximum = highest;
      const float weight = present ? Exp2(x - highest) : 0;
      sum = sum * kept + size * weight;
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        const float of_head = __shfl_sync(kFullMask, kept, j * kClusters);
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          out[j][i].x *= of_head;
          out[j][i].y *= of_head;
        }
      }
      float2 values[kClusters][kPairs];
#pragma unroll
      for (int c = 0; c < kClusters; ++c) {
        const auto* of = reinterpret_cast<const std::byte*>(__shfl_sync(kFullMask, row, c));
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          values[c][i] = SumPair(layer.index.format, of, d, 2 * (lane + 32 * i));
        }
      }
#pragma unroll
      for (int c = 0; c < kClusters; ++c) {
#pragma unroll
        for (int j = 0; j < kHeads; ++j) {
          const float w = __shfl_sync(kFullMask, weight, j * kClusters + c);
#pragma unroll
          for (int i = 0; i < kPairs; ++i) {
            out[j][i].x = fmaf(w, values[c][i].x, out[j][i].x);
            out[j][i].y = fmaf(w, values[c][i].y, out[j][i].y);
          }
        }
      }
    }
#pragma unroll
    for (int offset = 1; offset < kClusters; offset *= 2) {
      sum += __shfl_xor_sync(kFullMask, sum, offset);
    }
    __syncthreads();  // the previous heads are merged
    if (lane % kClusters == 0) {
      maxima[warp][mine] = maximum;
      sums[warp][mine] = sum;
    }
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        outs[warp][j][2 * (lane + 32 * i)] = out[j][i].x;
        outs[warp][j][2 * (lane + 32 * i) + 1] = out[j][i].y;
      }
    }
    __syncthreads();
    for (int32_t at = threadIdx.x; at < kHeads * (d + 1); at += kThreads) {
      const int32_t j = at / (d + 1), c = at - j * (d + 1);  // c == d: the sum
      if (j0 + j >= shape.group) break;
      float highest = -kLargestScore;
      for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, maxima[w][j]);
      float value = 0;
      for (int w = 0; w < kWarps; ++w) {
        value = fmaf(Exp2(maxima[w][j] - highest), c == d ? sums[w][j] : outs[w][j][c], value);
      }
      float* state = StateOf(shape, layer, pair, part, j0 + j);
      state[c == d ? 1 : 2 + c] = value;
      if (c == d) state[0] = highest;
    }
  }
}

// One block per query head of a sequence, one thread per channel.
__global__ void MergeKernel(const __grid_constant__ StepView step,
                            const __grid_constant__ WaveShape shape,
                            const __grid_constant__ WaveLayer layer, int32_t parts,
                            const float* log_sums, void* out, int64_t stride, bool bf16_out) {
  const int32_t query = blockIdx.x, sequence = blockIdx.y;
  const auto c = static_cast<int32_t>(threadIdx.x);
  WaitForKernelBefore();
  LetNextKernelStart();
  if (sequence >= *step.count || c >= shape.head_dim) return;
  const int32_t head = query / shape.group, j = query - head * shape.group;
  const int32_t pair = sequence * shape.kv_heads + head;
  const int64_t row = step.sequences[sequence].first_row;
  // All loads are issued at once: each one takes as long as all of them together.
  float maxima[kEstimateParts], sums[kEstimateParts], values[kEstimateParts];
#pragma unroll
  for (int part = 0; part < kEstimateParts; ++part) {
    maxima[part] = -kLargestScore;
    if (part >= parts) continue;
    const float* state = StateOf(shape, layer, pair, part, j);
    maxima[part] = state[0];
    sums[part] = state[1];
    values[part] = state[2 + c];
  }
  const WaveChoice choice = layer.choices[pair];
  const float exact = log_sums[row * shape.kv_heads * shape.group + query] * kLog2E;
  const int64_t at = row * stride + int64_t{query} * shape.head_dim + c;
  float value = bf16_out ? __bfloat162float(static_cast<__nv_bfloat16*>(out)[at])
                         : static_cast<float*>(out)[at];
  if (choice.count == choice.retrieved) return;
  float maximum = exact;
#pragma unroll
  for (int part = 0; part < kEstimateParts; ++part) maximum = fmaxf(maximum, maxima[part]);
  float sum = Exp2(exact - maximum);
  value *= sum;
#pragma unroll
  for (int part = 0; part < kEstimateParts; ++part) {
    if (part >= parts) break;
    const float weight = Exp2(maxima[part] - maximum);
    sum = fmaf(weight, sums[part], sum);
    value = fmaf(weight, values[part], value);
  }
  value /= sum;
  if (bf16_out) {
    static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(out)[at] = value;
  }
}

}  // namespace

void EstimateClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                      const WaveLayer& layer) {
  LC_CHECK(shape.head_dim >= 1 && shape.head_dim <= 256, "head_dim {}", shape.head_dim);
  if (step.capacity == 0) return;
  const int pairs = step.capacity * shape.kv_heads;
  const dim3 grid(PartsOf(AsCuda(stream), pairs), static_cast<unsigned>(pairs));
  CUstream_st* handle = AsCuda(stream).handle();
  const TableAccess access(layer.index);
  if (shape.head_dim <= 64) {
    EstimateKernel<1><<<grid, kThreads, 0, handle>>>(step, shape, layer, access);
  } else if (shape.head_dim <= 128) {
    EstimateKernel<2><<<grid, kThreads, 0, handle>>>(step, shape, layer, access);
  } else {
    EstimateKernel<4><<<grid, kThreads, 0, handle>>>(step, shape, layer, access);
  }
  LC_CUDA_LAUNCHED();
}

void MergeEstimate(Stream& stream, const StepView& step, const WaveShape& shape,
                   const WaveLayer& layer, const float* log_sums, const MatrixView& out) {
  LC_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBF16);
  if (step.capacity == 0) return;
  const dim3 grid(static_cast<unsigned>(shape.kv_heads * shape.group),
                  static_cast<unsigned>(step.capacity));
  const auto threads = static_cast<unsigned>((shape.head_dim + 31) / 32 * 32);
  CudaStream& cuda = AsCuda(stream);
  const auto parts = static_cast<int32_t>(PartsOf(cuda, step.capacity * shape.kv_heads));
  LaunchOverlapping(cuda, MergeKernel, grid, dim3(threads), 0, step, shape, layer, parts, log_sums,
                    out.data, out.stride, out.dtype == DType::kBF16);
}

}  // namespace litecache::lab::ops::cuda
