#include <cuda_fp16.h>

#include <algorithm>

#include "ops/common/overlap.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/select/encode_cuda.h"
#include "ops/select/litecache_encode.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxDim = kMostHeadDimOnGpu;
constexpr int kMostManyDim = 256;      // of HashEncodeKernel
constexpr float kLargestNorm = 65504;  // largest f16
// SMs that concurrent copies may occupy: blocks that wait for an SM would double a chunk's time.
constexpr int kSmsOfCopies = 8;

// The power of two that scales a vector's largest number to [2^8, 2^9): signs of products are
// preserved, and two f16 numbers represent 22 bits of it and of all numbers that are not much
// smaller.
__device__ inline float FactorOf(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23);
  return __uint_as_float(static_cast<uint32_t>(min(max(254 + 8 - exponent, 1), 254)) << 23);
}

// x = high + low with an error of 2^-22 of x.
__device__ inline void Split(float x, __half* high, __half* low) {
  *high = __float2half_rn(x);
  *low = __float2half_rn(x - __half2float(*high));
}
__device__ inline void Split(float x, float y, uint32_t* high, uint32_t* low) {
  const __half2 rounded = __floats2half2_rn(x, y);
  const float2 back = __half22float2(rounded);
  const __half2 rest = __floats2half2_rn(x - back.x, y - back.y);
  *high = *reinterpret_cast<const uint32_t*>(&rounded);
  *low = *reinterpret_cast<const uint32_t*>(&rest);
}

// A lane's weights of 8 * kColumns bits: of every 16 channels (kDepths) 2 * (lane % 4), the next
// one, and those 8 further; of every 8 columns lane / 4. group_weights: these bits' weights of
// channel 0. Channels from d on count as zero.
template <int kDepths, int kColumns>
struct HashWeights {
  uint32_t high[kColumns][kDepths][2], low[kColumns][kDepths][2];

  __device__ __forceinline__ void Load(const float* group_weights, int64_t bits, int32_t d,
                                       int32_t lane) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float* column = group_weights + 8 * i + lane / 4;
      float weight[kDepths][4];
      float largest = 0;
#pragma unroll
      for (int depth = 0; depth < kDepths; ++depth) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int32_t c = 16 * depth + 8 * (j / 2) + 2 * (lane % 4) + j % 2;
          weight[depth][j] = c < d ? column[c * bits] : 0;
          largest = fmaxf(largest, fabsf(weight[depth][j]));
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
      const float factor = FactorOf(largest);
#pragma unroll
      for (int depth = 0; depth < kDepths; ++depth) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          Split(weight[depth][2 * j] * factor, weight[depth][2 * j + 1] * factor,
                &high[i][depth][j], &low[i][depth][j]);
        }
      }
    }
  }

  // Codes of the tile's 16 keys from `first` on: code[i] is that of row lane / 4 + 8 i, the same in
  // all four lanes of a row. tile: [high or low][keys][pitch].
  template <int kKeys, int kPitch>
  __device__ __forceinline__ void Encode(const __half (&tile)[2][kKeys][kPitch], int32_t first,
                                         int32_t lane, uint32_t (&code)[2]) const {
    float sum[kColumns][4] = {};
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) {
      const int row = first + lane % 16, column = 16 * depth + lane / 16 * 8;
      uint32_t key_high[4], key_low[4];
      LoadMatrices(key_high, SharedAddress(&tile[0][row][column]));
      LoadMatrices(key_low, SharedAddress(&tile[1][row][column]));
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        MultiplyAddF16(sum[i], key_high, high[i][depth][0], high[i][depth][1]);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        MultiplyAddF16(sum[i], key_high, low[i][depth][0], low[i][depth][1]);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        MultiplyAddF16(sum[i], key_low, high[i][depth][0], high[i][depth][1]);
    }
    // Of each group of eight columns a lane has two.
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        code[j / 2] |= static_cast<uint32_t>(sum[i][j] > 0) << (8 * i + 2 * (lane % 4) + j % 2);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      code[j] |= __shfl_xor_sync(kFullMask, code[j], 1);
      code[j] |= __shfl_xor_sync(kFullMask, code[j], 2);
    }
  }
};

// For many keys, by tensor cores: keys and weights are split into two f16 numbers each, and three
// products make a sum that is as exact as one in f32. A warp has the weights of 8 * kColumns bits
// in registers (kDepths: of 16 channels); keys are streamed through shared memory. Blocks of one
// head divide its tiles of keys.
template <int kDepths, int kColumns>
__global__ void __launch_bounds__(kThreads, 1)
    HashEncodeKernel(const __grid_constant__ StepView step,
                     const __grid_constant__ LiteCacheShape shape,
                     const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                     int32_t words, bool norms, const float* weights) {
  constexpr int kBits = 8 * kColumns;             // of a warp
  constexpr int kKeys = 256 / kDepths;            // in a tile: 64, 32 or 16
  constexpr int kWarpKeys = kKeys / kWarps;       // that a warp loads
  constexpr int kLaneValues = 16 * kDepths / 32;  // of a key
  // Puts the chunks of eight rows into different banks.
  constexpr int kPitch = 16 * kDepths + 8;
  __shared__ __align__(16) __half tiles[2][2][kKeys][kPitch];  // two tiles in turn; high and low
  EncodeTarget target;
  const int32_t groups = 32 * words / kBits, parts = (groups + kWarps - 1) / kWarps;
  const auto head = static_cast<int32_t>(blockIdx.y) / parts;
  const int32_t part = static_cast<int32_t>(blockIdx.y) - head * parts;
  if (!FindKeys(step, shape, layer, source, blockIdx.z, head, &target)) return;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = shape.head_dim;
  // If there are fewer groups of bits than warps, several warps have the same bits of different
  // keys.
  const int32_t here = min(groups - part * kWarps, kWarps), teams = kWarps / here;
  const int32_t group = part * kWarps + warp % here, team = warp / here;

  const int64_t bits = int64_t{32} * words;
  HashWeights<kDepths, kColumns> own;
  own.Load(weights + head * d * bits + group * kBits, bits, d, lane);

  const int32_t block_bytes = 32 * (4 * words + (norms ? 2 : 0));
  const auto block_of = [&](int32_t position) {
    const int32_t page = position / layer.metadata.page_rows;
    return PageOf(*target.sequence, layer.metadata, target.list, page) +
           int64_t{(position - page * layer.metadata.page_rows) / 32} * block_bytes;
  };
  const auto stride = static_cast<int32_t>(gridDim.x) * kKeys;
  // A prompt's keys, from the address that token 0 would have: no load depends on another.
  const float* prompt =
      source.k == nullptr ? nullptr : KeyOf(shape, layer, source, target, /*position=*/0).f32;
  float next[kWarpKeys][kLaneValues];
  const auto load = [&](int32_t begin) {
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      const int32_t position = begin + warp + i * kWarps;
      if (position >= target.end) {
#pragma unroll
        for (int j = 0; j < kLaneValues; ++j) next[i][j] = 0;
        continue;
      }
      if (prompt != nullptr) {
        const float* key = prompt + position * source.stride;
#pragma unroll
        for (int j = 0; j < kLaneValues; ++j) {
          const int32_t c = lane + 32 * j;
          next[i][j] = c < d ? key[c] : 0;
        }
      } else {
        const KeyRow key = KeyOf(shape, layer, source, target, position);
#pragma unroll
        for (int j = 0; j < kLaneValues; ++j) {
          const int32_t c = lane + 32 * j;
          next[i][j] = c < d ? key[c] : 0;
        }
      }
    }
  };
  // Stores the loaded keys to a tile, and the keys' lengths, one lane each, to the metadata.
  const auto store = [&](int32_t begin, int turn) {
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      float square = 0, largest = 0;
#pragma unroll
      for (int j = 0; j < kLaneValues; ++j) {
        square = fmaf(next[i][j], next[i][j], square);
        largest = fmaxf(largest, fabsf(next[i][j]));
      }
      const float factor = FactorOf(WarpMax(largest));
#pragma unroll
      for (int j = 0; j < kLaneValues; ++j) {
        const int32_t row = warp + i * kWarps, c = lane + 32 * j;
        Split(next[i][j] * factor, &tiles[turn][0][row][c], &tiles[turn][1][row][c]);
      }
      square = WarpSum(square);
      if (lane == i) mine = square;
    }
    const int32_t position = begin + warp + lane * kWarps;
    if (!norms || part != 0 || lane >= kWarpKeys || position >= target.end) return;
    auto* lengths = reinterpret_cast<__half*>(block_of(position) + 32 * 4 * words);
    const float norm = sqrtf(mine);
    // Like std::min(norm, largest), so that a NaN stays NaN.
    lengths[position % 32] = __float2half_rn(norm > kLargestNorm ? kLargestNorm : norm);
  };

  int32_t begin = target.begin + static_cast<int32_t>(blockIdx.x) * kKeys;
  if (begin < target.end) load(begin);
  for (int turn = 0; begin < target.end; begin += stride, turn ^= 1) {
    store(begin, turn);
    // All readers of the other tile are done: no thread passes before they have arrived here.
    __syncthreads();
    if (begin + stride < target.end) load(begin + stride);
    for (int32_t first = 16 * team; team < teams && first < kKeys; first += 16 * teams) {
      uint32_t code[2] = {0, 0};
      own.Encode(tiles[turn], first, lane, code);
      const int32_t position = begin + first + lane / 4 + (lane % 4) * 8;
      if (lane % 4 >= 2 || position >= target.end) continue;
      const uint32_t mine = lane % 4 == 0 ? code[0] : code[1];
      std::byte* block = block_of(position);
      if constexpr (kBits == 32) {
        reinterpret_cast<uint32_t*>(block)[group * 32 + position % 32] = mine;
      } else {
        static_assert(kBits == 16);
        reinterpret_cast<uint16_t*>(block)[2 * (group / 2 * 32 + position % 32) + group % 2] =
            static_cast<uint16_t>(mine);
      }
    }
  }
}

template <int kDepths, int kColumns>
void EncodeMany(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const KeySource& keys, const HashFormat& format,
                const float* weights) {
  constexpr int kKeys = 256 / kDepths;
  const auto groups = static_cast<int>(format.bits / (8 * kColumns));
  const int heads = shape.kv_heads * ((groups + kWarps - 1) / kWarps);
  const int room = (stream.sm_count() - kSmsOfCopies) / (heads * step.capacity);
  // Few keys leave the recent window.
  const int tiles = keys.k != nullptr ? (step.max_rows + kKeys - 1) / kKeys : 1;
  const dim3 grid(static_cast<unsigned>(std::clamp(room, 1, std::max(tiles, 1))),
                  static_cast<unsigned>(heads), static_cast<unsigned>(step.capacity));
  HashEncodeKernel<kDepths, kColumns><<<grid, kThreads, 0, stream.handle()>>>(
      step, shape, layer, keys, static_cast<int32_t>(format.words()), format.norms, weights);
  LC_CUDA_LAUNCHED();
}

// For one key per head, as in decode: each lane computes one bit, and loads its weights before the
// key has arrived. Also for many keys of wide heads, whose weights do not fit into registers:
// blocks take them in turns.
__global__ void __launch_bounds__(kThreads)
    HashEncodeOneKernel(const __grid_constant__ StepView step,
                        const __grid_constant__ LiteCacheShape shape,
                        const __grid_constant__ LiteCacheLayer layer, const KeySource source,
                        int32_t words, bool norms, const float* weights) {
  constexpr int kAhead = 64;
  __shared__ float key[kMaxDim];
  const int32_t head = blockIdx.x;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = shape.head_dim;
  const int64_t bits = int64_t{32} * words;
  const float* column = weights + head * d * bits + lane;  // for word 0
  float ahead[kAhead];                                     // for word `warp`
#pragma unroll
  for (int c = 0; c < kAhead; ++c) {
    ahead[c] = warp < words && c < d ? column[32 * warp + c * bits] : 0;
  }
  LetNextKernelStart();
  WaitForKernelBefore();
  EncodeTarget target;
  if (!FindKeys(step, shape, layer, source, blockIdx.y, head, &target)) return;
  const int32_t block_bytes = 32 * (4 * words + (norms ? 2 : 0));
  for (int32_t position = target.begin + static_cast<int32_t>(blockIdx.z); position < target.end;
       position += static_cast<int32_t>(gridDim.z)) {
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

void HashEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const HashFormat& format, const float* weights,
                const MatrixView* k) {
  LC_CHECK(shape.head_dim >= 1 && shape.head_dim <= kMaxDim, "head_dim {}", shape.head_dim);
  LC_CHECK(layer.metadata.page_rows % HashFormat::kBlockTokens == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const KeySource keys = KeysOf(shape, k);
  const bool one = k == nullptr && step.max_rows == 1;
  if (one || shape.head_dim > kMostManyDim) {
    constexpr int32_t kMostTurns = 256;
    const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity),
                    static_cast<unsigned>(one ? 1 : std::min(step.max_rows, kMostTurns)));
    LaunchOverlapping(AsCuda(stream), HashEncodeOneKernel, grid, kThreads, 0, step, shape, layer,
                      keys, static_cast<int32_t>(format.words()), format.norms, weights);
    return;
  }
  const auto encode = shape.head_dim <= 64    ? EncodeMany<4, 4>
                      : shape.head_dim <= 128 ? EncodeMany<8, 4>
                                              : EncodeMany<16, 2>;
  encode(AsCuda(stream), step, shape, layer, keys, format, weights);
}

}  // namespace litecache::ops::cuda
