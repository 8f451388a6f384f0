#include "ops/common/overlap.cuh"
#include "ops/select/encode_cuda.h"
#include "ops/select/kept_keys.cuh"
#include "ops/select/litecache_encode.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kLargestScale = 65504;  // of f16

// A warp rounds a rotated key x [d] in shared memory, whose channels become codes, and writes it.
__device__ void RoundKey(const KeysLayout& layout, int32_t d, float* x, uint32_t* words,
                         __half* scale) {
  const int32_t lane = threadIdx.x % 32;
  float squares = 0;
  for (int32_t c = lane; c < d; c += 32) squares = fmaf(x[c], x[c], squares);
  const float square = WarpSum(squares);
  const float unit = layout.step * sqrtf(square / static_cast<float>(d));
  const bool kept = unit >= 1e-30f && square <= 3.402823466e38f;  // false for NaN
  const float inverse = 0.5f / unit, half = static_cast<float>(1 << (layout.bits - 1));
  float projected = 0;
  for (int32_t c = lane; c < d; c += 32) {
    const float code =
        fminf(fmaxf(floorf(fmaf(x[c], inverse, half)), 0.0f), static_cast<float>(layout.offset()));
    projected = fmaf(x[c], 2 * code - static_cast<float>(layout.offset()), projected);
    x[c] = kept ? code : 0;
  }
  projected = WarpSum(projected);
  __syncwarp();
  const int32_t channels = 32 / layout.bits;
  for (int32_t w = lane; w < layout.words; w += 32) {
    uint32_t word = 0;
    for (int32_t i = 0; i < channels && w * channels + i < d; ++i) {
      const auto code = static_cast<uint32_t>(x[w * channels + i]);
      word |= code << (8 * (i % 4) + layout.bits * (i / 4));
    }
    words[w * kKeysBlock] = word;
  }
  if (lane == 0) *scale = __float2half_rn(kept ? fminf(square / projected, kLargestScale) : 0);
}

// Blocks whose keys' means are the centres of others come first.
enum class Role { kFirst, kCentre, kOther };
__device__ inline Role RoleOf(int32_t token) {
  if (token < kKeysBlock) return Role::kFirst;
  return token % kKeysCentre < kKeysBlock ? Role::kCentre : Role::kOther;
}

// Channel c of the centre of the key at `position`; block_of(position) is its block.
template <class BlockOf>
__device__ float CentreOf(const KeysLayout& layout, const BlockOf& block_of, int32_t position,
                          int32_t c) {
  const Role role = RoleOf(position);
  if (role == Role::kFirst) return 0;
  const float first = MeanOf(layout, block_of(0), c);
  if (role == Role::kCentre || position < kKeysCentre) return first;
  return first + MeanOf(layout, block_of(position / kKeysCentre * kKeysCentre), c);
}

// Keys of blocks with this role. Tiles begin at multiples of their size, so that all keys of one
// have the same centre. kMost: of head_dim.
template <int kMost>
constexpr int kTileOf = 16 * 256 / kMost;  // keys at a time
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    KeysEncodeKernel(const __grid_constant__ StepView step,
                     const __grid_constant__ LiteCacheShape shape,
                     const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                     const KeysLayout layout, Role role, const float* rotation) {
  constexpr int kTile = kTileOf<kMost>;
  static_assert(kKeysBlock % kTile == 0);
  __shared__ float keys[kTile][kMost], rotated[kTile][kMost], centre[kMost];
  EncodeTarget target;
  const int32_t head = blockIdx.y;
  if (!FindKeys(step, shape, layer, source, blockIdx.z, head, &target)) return;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = shape.head_dim;
  const auto block_of = [&](int32_t position) {
    const int32_t page = position / layer.metadata.page_rows;
    return reinterpret_cast<uint32_t*>(PageOf(*target.sequence, layer.metadata, target.list, page) +
                                       (position - page * layer.metadata.page_rows) / kKeysBlock *
                                           layout.block_bytes());
  };
  for (int32_t tile = target.begin / kTile + blockIdx.x; tile * kTile < target.end;
       tile += gridDim.x) {
    const int32_t begin = max(target.begin, tile * kTile);
    const int32_t count = min(target.end, (tile + 1) * kTile) - begin;
    if (RoleOf(begin) != role) continue;  // the same for all threads
    __syncthreads();
    for (int32_t c = threadIdx.x; c < d; c += kThreads) {
      centre[c] = CentreOf(layout, block_of, begin, c);
    }
    for (int32_t i = warp; i < kTile; i += kWarps) {
      const KeyRow key = KeyOf(shape, layer, source, target, begin + min(i, count - 1));
      for (int32_t c = lane; c < d; c += 32) keys[i][c] = key[c];
    }
    __syncthreads();
    // A thread has a channel of all keys; terms in the CPU's order.
    for (int32_t channel = threadIdx.x; channel < d; channel += kThreads) {
      float sum[kTile] = {};
      for (int32_t c = 0; c < d; ++c) {
        const float factor = rotation[int64_t{c} * layout.stride + channel];
#pragma unroll
        for (int t = 0; t < kTile; ++t) sum[t] = fmaf(factor, keys[t][c], sum[t]);
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) rotated[t][channel] = sum[t] - centre[channel];
    }
    __syncthreads();
    for (int32_t i = warp; i < count; i += kWarps) {
      uint32_t* block = block_of(begin + i);
      const int32_t in_block = (begin + i) % kKeysBlock;
      RoundKey(layout, d, rotated[i], block + in_block,
               const_cast<__half*>(KeyScalesOf(layout, block)) + in_block);
    }
  }
}

// For one key per head, as in decode: a thread has a channel, and loads its column of the rotation
// before the key has arrived. A block's keys are in order: each has the centre it needs.
template <int kMost>
__global__ void __launch_bounds__(kMost)
    KeysEncodeOneKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ LiteCacheShape shape,
                        const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                        const KeysLayout layout, const float* rotation) {
  constexpr int kAhead = 64;
  __shared__ float key[kMost], rotated[kMost];
  const int32_t d = shape.head_dim, channel = threadIdx.x;
  const float* column = rotation + channel;
  float ahead[kAhead];
#pragma unroll
  for (int c = 0; c < kAhead; ++c) {
    ahead[c] = channel < d && c < d ? column[c * layout.stride] : 0;
  }
  LetNextKernelStart();
  WaitForKernelBefore();
  EncodeTarget target;
  if (!FindKeys(step, shape, layer, source, blockIdx.y, blockIdx.x, &target)) return;
  const auto block_of = [&](int32_t position) {
    const int32_t page = position / layer.metadata.page_rows;
    return reinterpret_cast<uint32_t*>(PageOf(*target.sequence, layer.metadata, target.list, page) +
                                       (position - page * layer.metadata.page_rows) / kKeysBlock *
                                           layout.block_bytes());
  };
  for (int32_t position = target.begin; position < target.end; ++position) {
    const KeyRow row = KeyOf(shape, layer, source, target, position);
    if (channel < d) key[channel] = row[channel];
    __syncthreads();
    if (channel < d) {
      const float centre = CentreOf(layout, block_of, position, channel);
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kAhead; ++c) sum = c < d ? fmaf(ahead[c], key[c], sum) : sum;
#pragma unroll 32
      for (int32_t c = kAhead; c < d; ++c) sum = fmaf(column[c * layout.stride], key[c], sum);
      rotated[channel] = sum - centre;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      uint32_t* block = block_of(position);
      const int32_t in_block = position % kKeysBlock;
      RoundKey(layout, d, rotated, block + in_block,
               const_cast<__half*>(KeyScalesOf(layout, block)) + in_block);
    }
    __syncthreads();  // the next key's centre may be of this block
  }
}

}  // namespace

void KeysEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const KeysFormat& format, const float* rotation,
                const MatrixView* k) {
  LC_CHECK(shape.head_dim == format.head_dim && shape.head_dim <= kMostHeadDimOnGpu &&
               (format.bits == 2 || format.bits == 4),
           "head_dim {}, {} bits of {}", shape.head_dim, format.bits, format.head_dim);
  LC_CHECK(layer.metadata.page_rows % kKeysBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const KeySource keys = KeysOf(shape, k);
  const auto encode = [&](auto most) {
    constexpr int kMost = decltype(most)::value;
    if (k == nullptr && step.max_rows == 1) {
      const dim3 heads(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
      LaunchOverlapping(AsCuda(stream), KeysEncodeOneKernel<kMost>, heads, kMost, 0, step, shape,
                        layer, keys, LayoutOf(format), rotation);
      return;
    }
    const dim3 grid = EncodeGrid(step, shape, keys, kTileOf<kMost>);
    for (const Role role : {Role::kFirst, Role::kCentre, Role::kOther}) {
      KeysEncodeKernel<kMost><<<grid, kThreads, 0, AsCuda(stream).handle()>>>(
          step, shape, layer, keys, LayoutOf(format), role, rotation);
      LC_CUDA_LAUNCHED();
    }
  };
  shape.head_dim <= 256 ? encode(std::integral_constant<int, 256>())
                        : encode(std::integral_constant<int, kMostHeadDimOnGpu>());
}

}  // namespace litecache::ops::cuda
