#pragma once

// Centred keys, initial centroids, and the update of centroids in an iteration. Sums are in f64,
// where sums of bf16 values are exact.
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/cluster_problem.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::lab::ops::cuda::clusters {

// Number of a cluster's tokens that its own warp sums; the whole block sums the rest.
constexpr int32_t kOwnTokens = 64;
// Independent loads per lane: with eight, fewer warps fit (32K: 57 us instead of 50).
constexpr int kKeyLoads = 4;

// A lane has eight channels, in pairs: returns the i-th of them.
__device__ __forceinline__ int32_t ChannelOf(int i) {
  return static_cast<int32_t>(threadIdx.x % 32) * 2 + i % 2 + 64 * (i / 2);
}

// Channels c and c + 1 of a row's key, c even.
__device__ __forceinline__ float2 KeyPair(const RowFormat& format, const std::byte* row, int32_t d,
                                          int32_t c) {
  if (d % 2 != 0) {
    return make_float2(Element(format, row, c), c + 1 < d ? Element(format, row, c + 1) : 0);
  }
  if (format.encoding == RowEncoding::kBF16) {
    return __bfloat1622float2(
        *reinterpret_cast<const __nv_bfloat162*>(reinterpret_cast<const __nv_bfloat16*>(row) + c));
  }
  return *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(row) + c);
}

// Sums all keys. One block per range of tokens, which its warps take in turn; a lane has eight
// channels.
static __global__ void __launch_bounds__(kThreads)
    SumKeysKernel(const __grid_constant__ Problem p) {
  __shared__ double of_warps[kWarps][256];
  const auto list = static_cast<int32_t>(blockIdx.y);
  const Scratch s = p.Of(list);
  const int32_t a_block = (p.work.count + gridDim.x - 1) / gridDim.x;
  const int32_t begin = blockIdx.x * a_block, end = min(p.work.count, begin + a_block);
  double sum[8] = {};
#pragma unroll 4
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x) / 32; i < end; i += kWarps) {
    const std::byte* row = TokenRow(p, s, list, i);
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      if (ChannelOf(k) >= p.d) break;
      const float2 x = KeyPair(p.work.store.format, row, p.d, ChannelOf(k));
      sum[k] += x.x;
      sum[k + 1] += x.y;
    }
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) of_warps[threadIdx.x / 32][ChannelOf(k)] = sum[k];
  __syncthreads();
  if (threadIdx.x >= p.d) return;
  double of_block = 0;
  for (int w = 0; w < kWarps; ++w) of_block += of_warps[w][threadIdx.x];
  atomicAdd(s.sums + threadIdx.x, of_block);
}

inline __device__ float MeanOf(const Problem& p, const Scratch& s, int32_t channel) {
  return static_cast<float>(s.sums[channel] / p.work.count);
}

// Centred keys in bf16. One warp per token.
static __global__ void __launch_bounds__(kThreads) CentreKernel(const __grid_constant__ Problem p) {
  const auto list = static_cast<int32_t>(blockIdx.y);
  const Scratch s = p.Of(list);
  float mean[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) mean[k] = ChannelOf(k) < p.d ? MeanOf(p, s, ChannelOf(k)) : 0;
#pragma unroll 4
  for (int32_t t = blockIdx.x * kWarps + threadIdx.x / 32; t < p.work.count;
       t += gridDim.x * kWarps) {
    const std::byte* row = TokenRow(p, s, list, t);
    __nv_bfloat16* point = s.points + int64_t{t} * p.padded;
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      const int32_t channel = ChannelOf(k);
      if (channel >= p.padded) break;
      float2 x = make_float2(0, 0);
      if (channel < p.d) {
        x = KeyPair(p.work.store.format, row, p.d, channel);
        x = make_float2(x.x - mean[k], channel + 1 < p.d ? x.y - mean[k + 1] : 0);
      }
      *reinterpret_cast<__nv_bfloat162*>(point + channel) = __floats2bfloat162_rn(x.x, x.y);
    }
  }
}

// Adds eight bf16 numbers to their sums.
__device__ __forceinline__ void AddEight(const uint4& packed, double (&sum)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(words[i] << 16);
    sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Writes channel `channel` of centroid c.
__device__ __forceinline__ void WriteCentroid(const Problem& p, const Scratch& s, int32_t c,
                                              int32_t channel, float value) {
  if (channel < p.d) s.centroids[int64_t{c} * p.d + channel] = value;
  s.targets[int64_t{c} * p.padded + channel] = __float2bfloat16_rn(value);
}

// Evenly strided keys. One warp per cluster.
static __global__ void __launch_bounds__(kThreads)
    BeginCentroidsKernel(const __grid_constant__ Problem p) {
  const Scratch s = p.Of(blockIdx.y);
  const int32_t c = blockIdx.x * kWarps + threadIdx.x / 32;
  if (c >= p.work.clusters) return;
  const auto token =
      static_cast<int32_t>((2 * int64_t{c} + 1) * p.work.count / (2 * int64_t{p.work.clusters}));
  const std::byte* row = TokenRow(p, s, static_cast<int32_t>(blockIdx.y), token);
  float value[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int32_t channel = ChannelOf(i);
    value[i] =
        channel < p.d ? Element(p.work.store.format, row, channel) - MeanOf(p, s, channel) : 0;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (ChannelOf(i) < p.padded) WriteCentroid(p, s, c, ChannelOf(i), value[i]);
  }
  if (threadIdx.x % 32 == 0) s.counts[c] = 0;
}

// A lane has eight adjacent channels of a padded key; a warp loads several keys at once.
template <int kDim>
struct KeyLanes {
  static constexpr int kChannels = 8;
  static constexpr int kOfKey = kDim / kChannels;  // lanes per key
  static constexpr int kKeys = 32 / kOfKey;        // keys per load
  static constexpr int kAtOnce = kKeys * kKeyLoads;
};

// Adds the keys of tokens order[i] for i in [begin, begin + 32), [begin + step, ...), below end.
template <int kDim>
__device__ __forceinline__ void AddKeys(const Scratch& s, int32_t begin, int32_t end, int32_t step,
                                        double (&sum)[8]) {
  using Lanes = KeyLanes<kDim>;
  const int32_t lane = threadIdx.x % 32, key = lane / Lanes::kOfKey;
  const auto* points = reinterpret_cast<const uint4*>(s.points) + lane % Lanes::kOfKey;
  for (int32_t first = begin; first < end; first += step) {
    const int32_t some = min(32, end - first);
    const int32_t token = lane < some ? s.order[first + lane] : 0;
    for (int32_t i = 0; i < some; i += Lanes::kAtOnce) {
      uint4 loaded[kKeyLoads];
#pragma unroll
      for (int r = 0; r < kKeyLoads; ++r) {
        const int32_t index = i + r * Lanes::kKeys + key;
        const int32_t of = __shfl_sync(kFullMask, token, index);
        loaded[r] = make_uint4(0, 0, 0, 0);
        if (index < some) loaded[r] = points[int64_t{of} * Lanes::kOfKey];
      }
#pragma unroll
      for (int r = 0; r < kKeyLoads; ++r) {
        if (i + r * Lanes::kKeys >= some) break;
        AddEight(loaded[r], sum);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    for (int lanes = Lanes::kOfKey; lanes < 32; lanes *= 2) {
      sum[k] += __shfl_xor_sync(kFullMask, sum[k], lanes);
    }
  }
}

// Means of the clusters' centred keys, normalized to length 1. One warp per cluster sums its first
// tokens; all warps of the block sum the remaining tokens of large clusters, so that none waits for
// a single warp.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 4)
    MoveCentroidsKernel(const __grid_constant__ Problem p) {
  using Lanes = KeyLanes<kDim>;
  __shared__ double of_warps[kWarps][kDim];
  __shared__ int32_t begins[kWarps], ends[kWarps];
  const Scratch s = p.Of(blockIdx.y);
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t c = blockIdx.x * kWarps + warp;
  const bool exists = c < p.work.clusters;
  const int32_t begin = exists ? s.offsets[c] : 0, end = exists ? s.offsets[c + 1] : 0;
  const int32_t own_end = min(end, begin + kOwnTokens);
  double sum[8] = {};
  AddKeys<kDim>(s, begin, own_end, 32, sum);
  if (lane == 0) {
    if (exists) s.counts[c] = 0;
    begins[warp] = own_end;
    ends[warp] = end;
  }
  if (__syncthreads_or(own_end < end) != 0) {
    for (int w = 0; w < kWarps; ++w) {
      if (begins[w] == ends[w]) continue;
      double rest[8] = {};
      AddKeys<kDim>(s, begins[w] + 32 * warp, ends[w], 32 * kWarps, rest);
      if (lane < Lanes::kOfKey) {
#pragma unroll
        for (int k = 0; k < 8; ++k) of_warps[warp][lane * 8 + k] = rest[k];
      }
      __syncthreads();
      if (w == warp && lane < Lanes::kOfKey) {
        for (int other = 0; other < kWarps; ++other) {
#pragma unroll
          for (int k = 0; k < 8; ++k) sum[k] += of_warps[other][lane * 8 + k];
        }
      }
      __syncthreads();
    }
  }
  if (begin == end) return;  // the centroid is unchanged
  // The sum need not be divided by the count, because its length is normalized to 1.
  float value[8], square = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    value[k] = lane < Lanes::kOfKey ? static_cast<float>(sum[k]) : 0;
    square += value[k] * value[k];
  }
  square = WarpSum(square);
  const float factor = square > 0 ? rsqrtf(square) : 0;
  if (lane >= Lanes::kOfKey) return;
#pragma unroll
  for (int k = 0; k < 8; ++k) WriteCentroid(p, s, c, lane * 8 + k, value[k] * factor);
}

}  // namespace litecache::lab::ops::cuda::clusters
