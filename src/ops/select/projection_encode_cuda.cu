#include "ops/select/encode_cuda.h"
#include "ops/select/litecache_encode.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kTile = 16;  // keys at a time
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxDim = kMostHeadDimOnGpu;

__device__ __forceinline__ uint32_t Bf16Bits(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// A lane computes one component of kTile keys, with terms in the CPU's order.
__global__ void __launch_bounds__(kThreads)
    ProjectionEncodeKernel(const __grid_constant__ StepView step,
                           const __grid_constant__ LiteCacheShape shape,
                           const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                           int32_t pairs, int32_t basis_stride, const float* basis) {
  __shared__ float keys[kTile][kMaxDim];
  EncodeTarget target;
  const int32_t head = blockIdx.y;
  if (!FindKeys(step, shape, layer, source, blockIdx.z, head, &target)) return;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = shape.head_dim;
  const float* of_head = basis + int64_t{head} * d * basis_stride;
  for (int32_t begin = target.begin + blockIdx.x * kTile; begin < target.end;
       begin += gridDim.x * kTile) {
    const int32_t count = min(kTile, target.end - begin);
    __syncthreads();
    for (int32_t i = warp; i < kTile; i += kWarps) {
      const KeyRow key = KeyOf(shape, layer, source, target, begin + min(i, count - 1));
      for (int32_t c = lane; c < d; c += 32) keys[i][c] = key[c];
    }
    __syncthreads();
    for (int32_t first = 32 * warp; first < 2 * pairs; first += 32 * kWarps) {
      const int32_t component = first + lane;
      const bool counts = component < 2 * pairs;
      float sum[kTile] = {};
      for (int32_t c = 0; c < d; ++c) {
        const float factor = counts ? of_head[int64_t{c} * basis_stride + component] : 0;
#pragma unroll
        for (int t = 0; t < kTile; ++t) sum[t] = fmaf(factor, keys[t][c], sum[t]);
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const float partner = __shfl_down_sync(kFullMask, sum[t], 1);
        if (!counts || lane % 2 != 0 || t >= count) continue;
        const int32_t position = begin + t, page = position / layer.metadata.page_rows;
        const int32_t in_page = position - page * layer.metadata.page_rows;
        auto* words = reinterpret_cast<uint32_t*>(
            PageOf(*target.sequence, layer.metadata, target.list, page));
        words[(int64_t{in_page / 32} * pairs + component / 2) * 32 + in_page % 32] =
            Bf16Bits(sum[t]) | Bf16Bits(partner) << 16;
      }
    }
  }
}

}  // namespace

void ProjectionEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                      const LiteCacheLayer& layer, const ProjectionFormat& format,
                      const float* basis, const MatrixView* k) {
  LC_CHECK(shape.head_dim >= 1 && shape.head_dim <= kMaxDim, "head_dim {}", shape.head_dim);
  LC_CHECK(layer.metadata.page_rows % ProjectionFormat::kBlockTokens == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const KeySource keys = KeysOf(shape, k);
  const dim3 grid = EncodeGrid(step, shape, keys, kTile);
  ProjectionEncodeKernel<<<grid, kThreads, 0, AsCuda(stream).handle()>>>(
      step, shape, layer, keys, static_cast<int32_t>(format.pairs()),
      static_cast<int32_t>(format.basis_stride()), basis);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
