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

// Keys of blocks with this role, a block of them at a time, which has one centre. kMost: of
// head_dim.
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    KeysEncodeKernel(const __grid_constant__ StepView step,
                     const __grid_constant__ LiteCacheShape shape,
                     const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                     const KeysLayout layout, Role role, const float* rotation) {
  __shared__ float rows[kWarps][2 * kMost], centre[kMost];
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
  for (int32_t tile = target.begin / kKeysBlock + blockIdx.x; tile * kKeysBlock < target.end;
       tile += gridDim.x) {
    const int32_t begin = max(target.begin, tile * kKeysBlock);
    const int32_t end = min(target.end, (tile + 1) * kKeysBlock);
    if (RoleOf(begin) != role) continue;  // the same for all threads
    __syncthreads();
    for (int32_t c = threadIdx.x; c < d; c += kThreads) {
      centre[c] = CentreOf(layout, block_of, begin, c);
    }
    __syncthreads();
    for (int32_t position = begin + warp; position < end; position += kWarps) {
      const KeyRow key = KeyOf(shape, layer, source, target, position);
      for (int32_t c = lane; c < d; c += 32) rows[warp][c] = key[c] * rotation[c];
      float* x = RotateByWarp(layout, rotation + d, d, rows[warp]);
      for (int32_t c = lane; c < d; c += 32) x[c] -= centre[c];
      uint32_t* block = block_of(position);
      const int32_t in_block = position % kKeysBlock;
      RoundKey(layout, d, x, block + in_block,
               const_cast<__half*>(KeyScalesOf(layout, block)) + in_block);
      __syncwarp();
    }
  }
}

// For one key per head, as in decode. A block's keys are in order: each has the centre it needs,
// which all threads compute while the first warp rotates the key.
template <int kMost>
__global__ void __launch_bounds__(kMost)
    KeysEncodeOneKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ LiteCacheShape shape,
                        const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                        const KeysLayout layout, const float* rotation) {
  __shared__ float row[2 * kMost];
  const int32_t d = shape.head_dim, channel = threadIdx.x;
  const float factor = channel < d ? rotation[channel] : 0;
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
  float* const rotated = layout.runs == 1 ? row : row + d;
  for (int32_t position = target.begin; position < target.end; ++position) {
    if (channel < d) row[channel] = KeyOf(shape, layer, source, target, position)[channel] * factor;
    __syncthreads();
    if (threadIdx.x < 32) RotateByWarp(layout, rotation + d, d, row);
    const float centre = channel < d ? CentreOf(layout, block_of, position, channel) : 0;
    __syncthreads();
    if (channel < d) rotated[channel] -= centre;
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
    const dim3 grid = EncodeGrid(step, shape, keys, kKeysBlock);
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
