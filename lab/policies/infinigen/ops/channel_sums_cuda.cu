#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/infinigen/ops/infinigen_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kMaxDim = 256;
constexpr int kTile = 16;    // rows at a time
constexpr int kSplits = 64;  // blocks per head, each with separate rows

struct SumsProblem {
  const float* q = nullptr;
  const float* k = nullptr;
  int64_t q_stride = 0, k_stride = 0;
  int32_t rows = 0, group = 0, head_dim = 0, width = 0;
  const float* skew = nullptr;
  double* parts = nullptr;  // [kSplits][kv_heads][width]
};

// One thread per channel. A row's group of queries and its key are group + 1 vectors.
__global__ void __launch_bounds__(kMaxDim)
    ChannelSumsKernel(const __grid_constant__ SumsProblem p) {
  __shared__ float tile[kMaxDim][kTile];
  const int32_t head = blockIdx.y, channel = threadIdx.x, d = p.head_dim;
  const float* skew = p.skew + int64_t{head} * d * p.width;
  const int64_t vectors = int64_t{p.rows} * (p.group + 1);
  double sum = 0;
  for (int64_t begin = int64_t{blockIdx.x} * kTile; begin < vectors;
       begin += int64_t{gridDim.x} * kTile) {
    __syncthreads();
    for (int32_t i = threadIdx.x; i < kTile * d; i += blockDim.x) {
      const int32_t t = i / d, c = i - t * d;
      const int64_t vector = begin + t;
      float x = 0;
      if (vector < vectors) {
        const int64_t row = vector / (p.group + 1);
        const auto j = static_cast<int32_t>(vector - row * (p.group + 1));
        x = j < p.group ? p.q[row * p.q_stride + (int64_t{head} * p.group + j) * d + c]
                        : p.k[row * p.k_stride + int64_t{head} * d + c];
      }
      tile[c][t] = x;
    }
    __syncthreads();
    if (channel >= p.width) continue;
    float product[kTile] = {};
    for (int32_t c = 0; c < d; ++c) {
      const float factor = skew[int64_t{c} * p.width + channel];
#pragma unroll
      for (int t = 0; t < kTile; ++t) product[t] = fmaf(factor, tile[c][t], product[t]);
    }
#pragma unroll
    for (int t = 0; t < kTile; ++t) sum += static_cast<double>(fabsf(product[t]));
  }
  if (channel < p.width) {
    p.parts[(int64_t{blockIdx.x} * gridDim.y + head) * p.width + channel] = sum;
  }
}

__global__ void AddPartsKernel(const double* parts, int32_t values, const double* before,
                               double* after) {
  const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= values) return;
  double sum = before[i];
  for (int32_t s = 0; s < kSplits; ++s) sum += parts[int64_t{s} * values + i];
  after[i] = sum;
}

// One block per list, one thread per channel.
__global__ void __launch_bounds__(kMaxDim)
    ChooseKernel(const double* sums, int32_t head_dim, int32_t width, int32_t rank,
                 int32_t* chosen) {
  __shared__ double values[kMaxDim];
  __shared__ bool taken[kMaxDim];
  const int32_t channel = threadIdx.x;
  if (channel < head_dim) values[channel] = sums[int64_t{blockIdx.x} * width + channel];
  __syncthreads();
  int32_t better = 0;
  if (channel < head_dim) {
    const double own = values[channel];
    for (int32_t c = 0; c < head_dim; ++c) {
      better += values[c] > own || (values[c] == own && c < channel);
    }
    taken[channel] = better < rank;
  }
  __syncthreads();
  if (channel >= head_dim || !taken[channel]) return;
  int32_t before = 0;
  for (int32_t c = 0; c < channel; ++c) before += taken[c];
  // NaNs are before all numbers and none is before them, so there may be more than `rank`.
  if (before < rank) chosen[int64_t{blockIdx.x} * rank + before] = channel;
}

}  // namespace

size_t ChannelSumsScratchBytes(int64_t kv_heads, int64_t width) {
  return static_cast<size_t>(kSplits * kv_heads * width) * sizeof(double);
}

void AddChannelSums(Stream& stream, const PartialLayer& layer, const MatrixView& q,
                    const MatrixView& k, const double* before, double* after, void* scratch) {
  LC_CHECK(q.dtype == DType::kF32 && k.dtype == DType::kF32 && q.rows == k.rows);
  LC_CHECK(layer.head_dim >= 1 && layer.head_dim <= kMaxDim && layer.width <= kMaxDim &&
               layer.width >= layer.head_dim,
           "head_dim {}, width {}", layer.head_dim, layer.width);
  LC_CHECK(q.cols == int64_t{layer.kv_heads} * layer.group * layer.head_dim &&
           k.cols == int64_t{layer.kv_heads} * layer.head_dim);
  CUstream_st* handle = AsCuda(stream).handle();
  const SumsProblem problem{.q = q.Row<const float>(0),
                            .k = k.Row<const float>(0),
                            .q_stride = q.stride,
                            .k_stride = k.stride,
                            .rows = static_cast<int32_t>(q.rows),
                            .group = layer.group,
                            .head_dim = layer.head_dim,
                            .width = layer.width,
                            .skew = layer.skew,
                            .parts = static_cast<double*>(scratch)};
  const dim3 grid(kSplits, static_cast<unsigned>(layer.kv_heads));
  const auto threads = static_cast<unsigned>((layer.width + 31) / 32 * 32);
  ChannelSumsKernel<<<grid, threads, 0, handle>>>(problem);
  LC_CUDA_LAUNCHED();
  const int32_t values = layer.kv_heads * layer.width;
  AddPartsKernel<<<static_cast<unsigned>((values + 127) / 128), 128, 0, handle>>>(
      problem.parts, values, before, after);
  LC_CUDA_LAUNCHED();
}

void ChooseChannels(Stream& stream, const double* sums, int64_t lists, int64_t head_dim,
                    int64_t width, int64_t rank, int32_t* chosen) {
  LC_CHECK(head_dim >= 1 && head_dim <= kMaxDim && rank >= 1 && rank <= head_dim);
  if (lists == 0) return;
  const auto threads = static_cast<unsigned>((head_dim + 31) / 32 * 32);
  ChooseKernel<<<static_cast<unsigned>(lists), threads, 0, AsCuda(stream).handle()>>>(
      sums, static_cast<int32_t>(head_dim), static_cast<int32_t>(width), static_cast<int32_t>(rank),
      chosen);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
