#include "ops/common/vectors.cuh"
#include "ops/select/hash_query.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kMaxHeadDim = kMostHeadDimOnGpu;
constexpr int kInFlight = 32;  // weights that a lane loads before it uses the first

// A warp hashes 32 bits of a query head.
__global__ void __launch_bounds__(kChainThreads, 3) HashQueryKernel(
    const __grid_constant__ StepView step, const __grid_constant__ LiteCacheShape shape,
    const __grid_constant__ LiteCacheLayer layer, const __grid_constant__ SelectSource source,
    const __grid_constant__ Chain chain, const int32_t words, const float* const weights) {
  __shared__ float4 queries_of_warps[kChainWarps][kMaxHeadDim / 4];
  const auto pair = static_cast<int32_t>(blockIdx.y);
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = shape.head_dim, group = shape.group, padded = (group + 7) / 8 * 8;
  const int64_t bits = int64_t{32} * words;
  const float* of_head = weights + pair % shape.kv_heads * d * bits;
  // The weights are loaded while it is determined whether they are needed.
  {
    const auto item = static_cast<int32_t>(blockIdx.x) * kChainWarps + warp;
    if (item < words * padded && item % padded == 0) {
      for (int32_t c = lane; c < d; c += 32)
        PrefetchToL2(of_head + c * bits + 32 * (item / padded));
    }
  }
  WaitForKernelBefore();
  LetNextKernelStart();
  SelectTarget target;
  if (!BeginPair(step, shape, layer, source, chain, pair, static_cast<int32_t>(blockIdx.x),
                 static_cast<int32_t>(gridDim.x), &target)) {
    return;
  }
  const HashQueries queries = QueriesOf(chain, shape, pair);
  // Finite for any query: estimates stay below the largest score.
  const float largest = kLargestScore / (65504 * static_cast<float>(bits));
  for (auto item = static_cast<int32_t>(blockIdx.x) * kChainWarps + warp; item < words * padded;
       item += static_cast<int32_t>(gridDim.x) * kChainWarps) {
    const int32_t w = item / padded, j = item % padded;
    if (j >= group) {
      if (lane == 0) {
        queries.codes[j * words + w] = 0;
        if (w == 0) queries.factors[j] = 0;
      }
      continue;
    }
    const float* q = target.q + j * d;
    const float* column = of_head + 32 * w + lane;
    float square = 0;
    auto* own_query = reinterpret_cast<float*>(queries_of_warps[warp]);
    __syncwarp();
    for (int32_t first = 0; first < d; first += 32) {
      const int32_t c = first + lane;
      const float x = c < d ? q[c] : 0;
      own_query[c] = x;
      square = fmaf(x, x, square);
    }
    __syncwarp();
    float sum = 0;
    for (int32_t first = 0; first < d; first += kInFlight) {
      float weight[kInFlight];
      if (first + kInFlight <= d) {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) weight[i] = __ldg(column + (first + i) * bits);
      } else {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          weight[i] = first + i < d ? __ldg(column + (first + i) * bits) : 0;
        }
      }
      const float4* four = queries_of_warps[warp] + first / 4;
#pragma unroll
      for (int i = 0; i < kInFlight; i += 4) {
        const float4 x = four[i / 4];
        sum = fmaf(weight[i], x.x, sum);
        sum = fmaf(weight[i + 1], x.y, sum);
        sum = fmaf(weight[i + 2], x.z, sum);
        sum = fmaf(weight[i + 3], x.w, sum);
      }
    }
    const uint32_t code = __ballot_sync(kFullMask, sum > 0);
    if (lane == 0) queries.codes[j * words + w] = code;
    if (w == 0) {
      const float length = sqrtf(WarpSum(square));
      if (lane == 0) {
        queries.factors[j] =
            fminf(length * source.scale * kLog2E / static_cast<float>(bits), largest);
      }
    }
  }
}

}  // namespace

void BeginHashSelect(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                     int32_t words, const float* weights) {
  LC_CHECK(shape.head_dim <= kMaxHeadDim, "head_dim {}", shape.head_dim);
  const int64_t items = words * ChainGroup(shape.group);
  const dim3 grid(
      static_cast<unsigned>(std::min<int64_t>((items + kChainWarps - 1) / kChainWarps, 16)),
      static_cast<unsigned>(step.capacity * shape.kv_heads));
  LaunchOverlapping(stream, HashQueryKernel, grid, kChainThreads, 0, step, shape, layer, source,
                    chain, words, weights);
}

}  // namespace litecache::ops::cuda
