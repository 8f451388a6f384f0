#include "ops/common/vectors.cuh"
#include "ops/select/keys_query.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

// A warp has a query head. Blocks are small, and so is their shared memory, so that they find room
// beside products.
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
static_assert(kWarps == kQuad);

// The lane's token of the first block: its codes and its scale.
template <int kMost>
struct FirstKey {
  uint32_t words[kMost / 8] = {};  // in 4 bits
  float scale = 0;
};

template <int kMost>
__device__ __forceinline__ FirstKey<kMost> LoadFirstKey(const LiteCacheLayer& layer,
                                                        const SelectTarget& target,
                                                        const KeysLayout& layout, int32_t lane) {
  FirstKey<kMost> key;
  const int32_t list = __ldcg(layer.metadata.list_of_head + target.head);
  const auto* block =
      reinterpret_cast<const uint32_t*>(PageOf(*target.sequence, layer.metadata, list, 0));
#pragma unroll
  for (int w = 0; w < kMost / 8; ++w) {
    if (w < layout.words) key.words[w] = block[w * kKeysBlock + lane];
  }
  key.scale = __half2float(KeyScalesOf(layout, block)[lane]);
  return key;
}

// The product of the lane's key with a query's bytes.
template <int kMost>
__device__ __forceinline__ int32_t Multiply(const FirstKey<kMost>& key, const KeysLayout& layout,
                                            const uint32_t* bytes) {
  int32_t product = 0;
  const uint32_t mask = layout.bits == 4 ? 0x0f0f0f0f : 0x03030303;
#pragma unroll
  for (int w = 0; w < kMost / 8; ++w) {
    if (w >= layout.words) break;
    for (int32_t part = 0; part < layout.parts(); ++part) {
      product = __dp4a(static_cast<int32_t>(key.words[w] >> (part * layout.bits) & mask),
                       static_cast<int32_t>(bytes[w * layout.parts() + part]), product);
    }
  }
  return product;
}

// What a head beyond the group has: zeros.
__device__ __forceinline__ void ClearQuery(const KeysQueries& queries, int32_t j, int32_t lane) {
  for (int32_t w = lane; w < kChainWords; w += 32) queries.bytes[j * kChainWords + w] = 0;
  if (lane == 0) {
    queries.factors[j] = queries.first[j] = 0;
    queries.sums[j] = 0;
  }
}

// The largest magnitude of a rotated query [d], infinity if a channel is not finite.
__device__ __forceinline__ float LargestOf(const float* rotated, int32_t d, int32_t lane) {
  float largest = 0;
  for (int32_t c = lane; c < d; c += 32) {
    largest = fmaxf(largest, isfinite(rotated[c]) ? fabsf(rotated[c]) : INFINITY);
  }
  return WarpMax(largest);
}

// Rounds a rotated query to `bytes` [kChainWords] in shared and in global memory, with 127 for
// `largest`; zeros if it does not count. Returns the sum of the bytes.
__device__ __forceinline__ int32_t RoundToBytes(const float* rotated, int32_t d, bool counts,
                                                float largest, int32_t lane, uint32_t* bytes,
                                                uint32_t* global) {
  int32_t sum = 0;
  for (int32_t w = lane; w < kChainWords; w += 32) {
    uint32_t word = 0;
    for (int32_t i = 0; counts && i < 4 && 4 * w + i < d; ++i) {
      const int32_t byte = __float2int_rn(rotated[4 * w + i] * (127 / largest));
      sum += byte;
      word |= (static_cast<uint32_t>(byte) & 0xff) << (8 * i);
    }
    bytes[w] = global[w] = word;
  }
  __syncwarp();
  return __reduce_add_sync(kFullMask, sum);
}

// kMost: of head_dim.
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    KeysQueryKernel(const __grid_constant__ StepView step,
                    const __grid_constant__ LiteCacheShape shape,
                    const __grid_constant__ LiteCacheLayer layer,
                    const __grid_constant__ SelectSource source,
                    const __grid_constant__ Chain chain, const KeysLayout layout,
                    const float* const rotation) {
  extern __shared__ float rows[];  // of each warp, RotateByWarp's
  __shared__ uint32_t bytes[kWarps][kChainWords];
  const auto pair = static_cast<int32_t>(blockIdx.y);
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = shape.head_dim, part = static_cast<int32_t>(blockIdx.x);
  const int32_t j = part * kWarps + warp;
  float factors[kMost / 32];
#pragma unroll
  for (int i = 0; i < kMost / 32; ++i) {
    factors[i] = lane + 32 * i < d ? rotation[lane + 32 * i] : 0;
  }
  WaitForKernelBefore();
  LetNextKernelStart();
  SelectTarget target;
  const auto parts = static_cast<int32_t>(gridDim.x);
  if (!BeginPair(step, shape, layer, source, chain, pair, part, parts, &target)) return;
  const KeysQueries queries = KeysQueriesOf(chain, shape, pair);
  if (j >= shape.group) {
    ClearQuery(queries, j, lane);
    return;
  }
  float* const row = rows + warp * d * (layout.runs == 1 ? 1 : 2);
#pragma unroll
  for (int i = 0; i < kMost / 32; ++i) {
    const int32_t c = lane + 32 * i;
    if (c < d) row[c] = target.q[j * d + c] * factors[i];
  }
  // The first block may not be whole, but is if there are tokens behind it.
  const bool has_first = target.end > kKeysBlock;
  FirstKey<kMost> key;
  if (has_first) key = LoadFirstKey<kMost>(layer, target, layout, lane);
  const float* rotated = RotateByWarp(layout, rotation + d, d, row);
  const float largest = LargestOf(rotated, d, lane);
  const bool counts = largest >= 1e-30f && largest < INFINITY;
  const int32_t sum = layout.offset() * RoundToBytes(rotated, d, counts, largest, lane, bytes[warp],
                                                     queries.bytes + j * kChainWords);
  // Finite for any query: a product with a key, and each of the two with means, stays below a
  // quarter of the largest score.
  const float most = kLargestScore / (4 * 65504.0f * 127 * static_cast<float>(layout.offset() * d));
  const float factor = counts ? fminf(largest / 127 * source.scale * kLog2E, most) : 0;
  float mean = 0;
  if (has_first) {
    const int32_t value = 2 * Multiply(key, layout, bytes[warp]) - sum;
    mean = WarpSum(static_cast<float>(value) * factor * key.scale) / kKeysBlock;
  }
  if (lane == 0) {
    queries.factors[j] = factor;
    queries.sums[j] = sum;
    queries.first[j] = mean;
  }
}

}  // namespace

void BeginKeysSelect(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                     const KeysLayout& layout, const float* rotation) {
  LC_CHECK(shape.head_dim <= kMaxKeysDim, "head_dim {}", shape.head_dim);
  // As many heads as ReadQueries of the next kernels reads.
  const int32_t heads = PaddedGroup(shape.group, shape.group <= kQuad ? kQuad : 2 * kQuad);
  const dim3 grid(static_cast<unsigned>(heads / kWarps),
                  static_cast<unsigned>(step.capacity * shape.kv_heads));
  const size_t bytes =
      sizeof(float) * static_cast<size_t>(kWarps * shape.head_dim * (layout.runs == 1 ? 1 : 2));
  const auto kernel = shape.head_dim <= 128 ? KeysQueryKernel<128> : KeysQueryKernel<kMaxKeysDim>;
  LaunchOverlapping(stream, kernel, grid, kThreads, bytes, step, shape, layer, source, chain,
                    layout, rotation);
}

}  // namespace litecache::ops::cuda
