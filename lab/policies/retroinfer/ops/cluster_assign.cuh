#pragma once

// Assigns every token to its centroid, and to its position in cluster order.
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/cluster_problem.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::lab::ops::cuda::clusters {

// Clusters counted at a time, and tokens that one block places.
constexpr int32_t kPlacedClusters = 4096, kPlacedTokens = 1024;

// Assigns every token of a segment to the centroid of the segment with the largest product; ties go
// to the first. Warps keep their tokens in registers; centroids pass through shared memory. Within
// 32 channels both operands are loaded in an order in which a lane's channels are adjacent; the
// order does not affect the sums.
template <int kDim>
struct AssignShape {
  static constexpr int kPointTiles = kDim > 128 ? 1 : 2;  // of 16 tokens, per warp
  static constexpr int kPoints = kWarps * kPointTiles * 16;
  static constexpr int kTile = kDim > 128 ? 32 : 64;  // centroids
  static constexpr int kRow = kDim + 32;              // offsets rows by banks
};

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    AssignKernel(const __grid_constant__ Problem p, int32_t tokens, int32_t clusters) {
  using Shape = AssignShape<kDim>;
  __shared__ __align__(128) __nv_bfloat16 tiles[2][Shape::kTile * Shape::kRow];
  const Scratch s = p.Of(blockIdx.z);
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t first_token = blockIdx.y * tokens, first_cluster = blockIdx.y * clusters;
  const __nv_bfloat16* targets = s.targets + int64_t{first_cluster} * kDim;
  const auto load = [&](int32_t begin, int buffer) {
    constexpr int kChunks = kDim / 8;
    for (int i = threadIdx.x; i < Shape::kTile * kChunks; i += kThreads) {
      const int r = i / kChunks, c = i % kChunks;
      const bool present = begin + r < clusters;
      CopyChunk(SharedAddress(&tiles[buffer][r * Shape::kRow + c * 8]),
                targets + (present ? int64_t{begin + r} * kDim + c * 8 : 0), present);
    }
    CommitCopies();
  };
  load(0, 0);
  const int32_t base = blockIdx.x * Shape::kPoints + warp * Shape::kPointTiles * 16;
  uint32_t a[Shape::kPointTiles][kDim / 16][4];
#pragma unroll
  for (int m = 0; m < Shape::kPointTiles; ++m) {
    const int32_t low = min(base + m * 16 + lane / 4, tokens - 1);
    const int32_t high = min(base + m * 16 + lane / 4 + 8, tokens - 1);
    const __nv_bfloat16* points = s.points + int64_t{first_token} * kDim + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      const auto x = *reinterpret_cast<const uint4*>(points + int64_t{low} * kDim + 32 * j);
      const auto y = *reinterpret_cast<const uint4*>(points + int64_t{high} * kDim + 32 * j);
      a[m][2 * j][0] = x.x;
      a[m][2 * j][1] = y.x;
      a[m][2 * j][2] = x.y;
      a[m][2 * j][3] = y.y;
      a[m][2 * j + 1][0] = x.z;
      a[m][2 * j + 1][1] = y.z;
      a[m][2 * j + 1][2] = x.w;
      a[m][2 * j + 1][3] = y.w;
    }
  }
  float best[Shape::kPointTiles][2];
  int32_t which[Shape::kPointTiles][2];
#pragma unroll
  for (int m = 0; m < Shape::kPointTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      best[m][h] = -INFINITY;
      which[m][h] = 0;
    }
  }
  for (int32_t begin = 0, buffer = 0; begin < clusters; begin += Shape::kTile, buffer ^= 1) {
    WaitForCopies<0>();
    __syncthreads();  // the tile is loaded, and the other buffer is not read any more
    if (begin + Shape::kTile < clusters) load(begin + Shape::kTile, buffer ^ 1);
    // Only the last tile may have fewer centroids, so only it checks.
    const auto tile = [&](auto whole) {
#pragma unroll 2
      for (int t = 0; t < Shape::kTile / 8; ++t) {
        const __nv_bfloat16* row = &tiles[buffer][(t * 8 + lane / 4) * Shape::kRow + lane % 4 * 8];
        float products[Shape::kPointTiles][4] = {};
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) {
          const auto b = *reinterpret_cast<const uint4*>(row + 32 * j);
#pragma unroll
          for (int m = 0; m < Shape::kPointTiles; ++m) {
            MultiplyAdd(products[m], a[m][2 * j], b.x, b.y);
            MultiplyAdd(products[m], a[m][2 * j + 1], b.z, b.w);
          }
        }
        const int32_t cluster = begin + t * 8 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < Shape::kPointTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (products[m][i] > best[m][i / 2] &&
                (decltype(whole)::value || cluster + i % 2 < clusters)) {
              best[m][i / 2] = products[m][i];
              which[m][i / 2] = cluster + i % 2;
            }
          }
        }
      }
    };
    if (begin + Shape::kTile <= clusters) {
      tile(std::true_type());
    } else {
      tile(std::false_type());
    }
  }
#pragma unroll
  for (int m = 0; m < Shape::kPointTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      for (int step = 1; step < 4; step *= 2) {
        const float other = __shfl_xor_sync(kFullMask, best[m][h], step);
        const int32_t index = __shfl_xor_sync(kFullMask, which[m][h], step);
        if (other > best[m][h] || (other == best[m][h] && index < which[m][h])) {
          best[m][h] = other;
          which[m][h] = index;
        }
      }
      const int32_t token = base + m * 16 + h * 8 + lane / 4;
      if (lane % 4 == 0 && token < tokens) {
        const int32_t cluster = first_cluster + which[m][h];
        s.assignment[first_token + token] = cluster;
        s.ranks[first_token + token] = atomicAdd(s.counts + cluster, 1);
      }
    }
  }
}

// Computes where each cluster's tokens begin, and the tokens in cluster order. All tokens of a
// segment are in clusters of it. Every block counts separately, which avoids kernels that wait for
// each other.
static __global__ void __launch_bounds__(kThreads)
    PlaceKernel(const __grid_constant__ Problem p, int32_t tokens, int32_t clusters) {
  __shared__ int32_t offsets[kPlacedClusters];
  __shared__ int32_t of_warps[kWarps];
  const Scratch s = p.Of(blockIdx.z);
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t first_token = blockIdx.y * tokens, first_cluster = blockIdx.y * clusters;
  const int32_t begin = blockIdx.x * kPlacedTokens, end = min(tokens, begin + kPlacedTokens);
  int32_t before = first_token;
  for (int32_t base = 0; base < clusters; base += kPlacedClusters) {
    const int32_t some = min(kPlacedClusters, clusters - base);
    const int32_t* counts = s.counts + first_cluster + base;
    // Each thread counts adjacent clusters.
    const int32_t a_thread = (some + kThreads - 1) / kThreads;
    const int32_t own = min(some, static_cast<int32_t>(threadIdx.x) * a_thread);
    const int32_t own_end = min(some, own + a_thread);
    int32_t sum = 0, of_warp;
    for (int32_t c = own; c < own_end; ++c) sum += counts[c];
    int32_t at = before + WarpExclusiveSum(sum, &of_warp);
    if (lane == 31) of_warps[warp] = of_warp;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) at += of_warps[w];
      before += of_warps[w];
    }
    for (int32_t c = own; c < own_end; ++c) {
      offsets[c] = at;
      at += counts[c];
    }
    __syncthreads();
    if (blockIdx.x == 0) {
      for (int32_t c = threadIdx.x; c < some; c += kThreads) {
        s.offsets[first_cluster + base + c] = offsets[c];
      }
    }
    for (int32_t t = begin + static_cast<int32_t>(threadIdx.x); t < end; t += kThreads) {
      const int32_t c = s.assignment[first_token + t] - first_cluster - base;
      if (c >= 0 && c < some) s.order[offsets[c] + s.ranks[first_token + t]] = first_token + t;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y + 1 == gridDim.y) {
    s.offsets[p.work.clusters] = before;
  }
}

}  // namespace litecache::lab::ops::cuda::clusters
