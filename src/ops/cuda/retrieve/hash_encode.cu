#include <cuda_fp16.h>

#include "ops/cuda/common/overlap.cuh"
#include "ops/cuda/retrieve/lite_encode.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kTile = 16;  // keys at a time
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxDim = 256;
constexpr float kLargestNorm = 65504;  // of f16

__global__ void __launch_bounds__(kThreads)
    HashEncodeKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteShape shape,
                     const __grid_constant__ LiteLayer layer, const KeySource source, int32_t words,
                     bool norms, const float* weights) {
  __shared__ __align__(16) float keys[kTile][kMaxDim];
  EncodeTarget target;
  const int32_t head = blockIdx.y;
  if (!FindKeys(step, shape, layer, source, blockIdx.z, head, &target)) return;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = shape.head_dim, padded = (d + 3) / 4 * 4;
  const int64_t bits = int64_t{32} * words;
  const float* weight = weights + head * d * bits;
  const int32_t block_bytes = 32 * (4 * words + (norms ? 2 : 0));
  const auto block_of = [&](int32_t position) {
    const int32_t page = position / layer.metadata.page_rows;
    return PageOf(*target.sequence, layer.metadata, target.list, page) +
           int64_t{(position - page * layer.metadata.page_rows) / 32} * block_bytes;
  };
  for (int32_t begin = target.begin + blockIdx.x * kTile; begin < target.end;
       begin += gridDim.x * kTile) {
    const int32_t count = min(kTile, target.end - begin);
    __syncthreads();
    for (int32_t i = warp; i < kTile; i += kWarps) {
      if (i >= count) {
        for (int32_t c = lane; c < padded; c += 32) keys[i][c] = 0;
        continue;
      }
      const KeyRow key = KeyOf(shape, layer, source, target, begin + i);
      float square = 0;
      for (int32_t c = lane; c < padded; c += 32) {
        const float x = c < d ? key[c] : 0;
        keys[i][c] = x;
        square = fmaf(x, x, square);
      }
      square = WarpSum(square);
      if (!norms || lane != 0) continue;
      const int32_t position = begin + i;
      auto* lengths = reinterpret_cast<__half*>(block_of(position) + 32 * 4 * words);
      const float norm = sqrtf(square);
      // As std::min(norm, largest): a NaN stays one.
      lengths[position % 32] = __float2half_rn(norm > kLargestNorm ? kLargestNorm : norm);
    }
    __syncthreads();
    for (int32_t w = warp; w < words; w += kWarps) {
      const float* column = weight + 32 * w + lane;
      float sum[kTile] = {};
      for (int32_t c = 0; c < padded; c += 4) {
        float factor[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) factor[i] = c + i < d ? column[(c + i) * bits] : 0;
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          const float4 x = *reinterpret_cast<const float4*>(&keys[t][c]);
          sum[t] = fmaf(factor[0], x.x, sum[t]);
          sum[t] = fmaf(factor[1], x.y, sum[t]);
          sum[t] = fmaf(factor[2], x.z, sum[t]);
          sum[t] = fmaf(factor[3], x.w, sum[t]);
        }
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const uint32_t code = __ballot_sync(kFullMask, sum[t] > 0);
        if (lane == 0 && t < count) {
          reinterpret_cast<uint32_t*>(block_of(begin + t))[w * 32 + (begin + t) % 32] = code;
        }
      }
    }
  }
}

// One key a head, as in decode: a lane has a bit, and asks for its weights before the key has come.
// Sums in the order of the kernel above.
__global__ void __launch_bounds__(kThreads)
    HashEncodeOneKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ LiteShape shape,
                        const __grid_constant__ LiteLayer layer, const KeySource source,
                        int32_t words, bool norms, const float* weights) {
  constexpr int kAhead = 64;
  __shared__ float key[kMaxDim];
  const int32_t head = blockIdx.x;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = shape.head_dim;
  const int64_t bits = int64_t{32} * words;
  const float* column = weights + head * d * bits + lane;  // of word 0
  float ahead[kAhead];                                     // of word `warp`
#pragma unroll
  for (int c = 0; c < kAhead; ++c) {
    ahead[c] = warp < words && c < d ? column[32 * warp + c * bits] : 0;
  }
  LetNextKernelStart();
  WaitForKernelBefore();
  EncodeTarget target;
  if (!FindKeys(step, shape, layer, source, blockIdx.y, head, &target)) return;
  const int32_t block_bytes = 32 * (4 * words + (norms ? 2 : 0));
  for (int32_t position = target.begin; position < target.end; ++position) {
    const int32_t page = position / layer.metadata.page_rows;
    std::byte* block = PageOf(*target.sequence, layer.metadata, target.list, page) +
                       int64_t{(position - page * layer.metadata.page_rows) / 32} * block_bytes;
    const KeyRow row = KeyOf(shape, layer, source, target, position);
    __syncthreads();
    for (int32_t c = threadIdx.x; c < d; c += kThreads) key[c] = row[c];
    __syncthreads();
    if (norms && warp == 0) {
      float square = 0;
      for (int32_t c = lane; c < d; c += 32) square = fmaf(key[c], key[c], square);
      const float norm = sqrtf(WarpSum(square));
      if (lane == 0) {
        reinterpret_cast<__half*>(block + 32 * 4 * words)[position % 32] =
            __float2half_rn(norm > kLargestNorm ? kLargestNorm : norm);
      }
    }
    for (int32_t w = warp; w < words; w += kWarps) {
      float sum = 0;
      int32_t c = 0;
      if (w == warp) {
#pragma unroll
        for (; c < kAhead; ++c) sum = c < d ? fmaf(ahead[c], key[c], sum) : sum;
      }
#pragma unroll 32
      for (; c < d; ++c) sum = fmaf(column[32 * w + c * bits], key[c], sum);
      const uint32_t code = __ballot_sync(kFullMask, sum > 0);
      if (lane == 0) reinterpret_cast<uint32_t*>(block)[w * 32 + position % 32] = code;
    }
  }
}

}  // namespace

void HashEncode(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const HashFormat& format, const float* weights,
                const MatrixView* k) {
  LC_CHECK(shape.head_dim >= 1 && shape.head_dim <= kMaxDim, "head_dim {}", shape.head_dim);
  LC_CHECK(layer.metadata.page_rows % HashFormat::kBlockTokens == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const KeySource keys = KeysOf(shape, k);
  if (k == nullptr && step.max_rows == 1) {
    const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
    LaunchOverlapping(AsCuda(stream), HashEncodeOneKernel, grid, kThreads, 0, step, shape, layer,
                      keys, static_cast<int32_t>(format.words()), format.norms, weights);
    return;
  }
  HashEncodeKernel<<<EncodeGrid(step, shape, keys, kTile), kThreads, 0, AsCuda(stream).handle()>>>(
      step, shape, layer, keys, static_cast<int32_t>(format.words()), format.norms, weights);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
