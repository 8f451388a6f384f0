// Each iteration assigns every token to a centroid (matrix products of bf16), sorts the tokens by
// cluster, and sums each cluster's keys in f64, where sums of bf16 are exact: they do not depend on
// the order in which atomics left the tokens. Only the order of the rows that are stored has to be
// made the tokens' own.
#include <algorithm>
#include <type_traits>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/common/tensor_core.cuh"
#include "ops/cuda/retroinfer/cluster_build.h"
#include "ops/cuda/transfer/move_rows.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Blocks that read the store through the link (hardware.md).
constexpr int kLinkBlocks = 16;
constexpr int kLinkThreads = 1024;
// Clusters of more tokens are put into their order by a pass over all tokens.
constexpr int32_t kFewTokens = 256;
// Of a cluster's tokens, those that its own warp adds up; what is beyond is the whole block's.
constexpr int32_t kOwnTokens = 64;
// Loads of a lane that do not wait for each other: with eight fewer warps fit (32K: 57 us, not 50).
constexpr int kKeyLoads = 4;
// Clusters whose places are counted at a time, and tokens that a block puts into their places.
constexpr int32_t kPlacedClusters = 4096, kPlacedTokens = 1024;

int32_t PaddedDim(int64_t d) { return d <= 64 ? 64 : d <= 128 ? 128 : 256; }

// One list's part of the scratch.
struct Scratch {
  std::byte* rows;         // [count][row_bytes], where they are loaded
  __nv_bfloat16* points;   // [count][padded]: centred keys
  __nv_bfloat16* targets;  // [clusters][padded]: centroids, rounded
  double* sums;            // [d] of all keys
  float* centroids;        // [clusters][d], centred
  int32_t* assignment;     // [count]
  int32_t* ranks;          // [count] in the cluster
  int32_t* order;          // [count] tokens, cluster after cluster
  int32_t* counts;         // [clusters]
  int32_t* offsets;        // [clusters + 1]
};

struct Problem {
  ClusterBuildWork work;
  int32_t d = 0, padded = 0, row_bytes = 0;
  int32_t segment_tokens = 0, segment_clusters = 0;
  int64_t list_bytes = 0;

  __host__ __device__ static int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  // Appends an array; returns where it begins.
  __host__ __device__ static int64_t Place(int64_t* at, int64_t bytes) {
    const int64_t begin = *at;
    *at += Aligned(bytes);
    return begin;
  }
  __host__ __device__ Scratch Of(int32_t list, int64_t* size = nullptr) const {
    auto* base = static_cast<std::byte*>(work.scratch) + list * list_bytes;
    const int64_t n = work.count, c = work.clusters;
    int64_t at = 0;
    Scratch s;
    s.rows = base + Place(&at, work.load ? n * row_bytes : 0);
    s.points = reinterpret_cast<__nv_bfloat16*>(base + Place(&at, n * padded * 2));
    s.targets = reinterpret_cast<__nv_bfloat16*>(base + Place(&at, c * padded * 2));
    s.sums = reinterpret_cast<double*>(base + Place(&at, int64_t{8} * d));
    s.centroids = reinterpret_cast<float*>(base + Place(&at, 4 * c * d));
    s.assignment = reinterpret_cast<int32_t*>(base + Place(&at, 4 * n));
    s.ranks = reinterpret_cast<int32_t*>(base + Place(&at, 4 * n));
    s.order = reinterpret_cast<int32_t*>(base + Place(&at, 4 * n));
    s.counts = reinterpret_cast<int32_t*>(base + Place(&at, 4 * c));
    s.offsets = reinterpret_cast<int32_t*>(base + Place(&at, 4 * (c + 1)));
    if (size != nullptr) *size = at;
    return s;
  }
};

Problem MakeProblem(const ClusterBuildWork& work) {
  Problem p;
  const RowFormat& format = work.store.format;
  p.work = work;
  p.d = static_cast<int32_t>(format.head_dim);
  p.padded = PaddedDim(p.d);
  p.row_bytes = static_cast<int32_t>(format.row_bytes());
  p.segment_tokens = work.count / work.segments;
  p.segment_clusters = work.clusters / work.segments;
  p.Of(0, &p.list_bytes);
  return p;
}

__device__ std::byte* RowAt(const ListPages& table, int32_t list, int32_t row, int32_t row_bytes) {
  const int32_t block = row / table.page_rows;
  return table.pages[int64_t{block} * table.lists + list] +
         int64_t{row - block * table.page_rows} * row_bytes;
}

__device__ __forceinline__ int32_t SourceRow(const ListPages& source, int32_t token) {
  return source.ring == 0 || token < source.sink ? token : source.sink + token % source.ring;
}

// Row of the i-th token of the run, to be clustered.
__device__ __forceinline__ const std::byte* TokenRow(const Problem& p, const Scratch& s,
                                                     int32_t list, int32_t i) {
  if (p.work.load) return s.rows + int64_t{i} * p.row_bytes;
  return RowAt(p.work.source, p.work.source_list + list, SourceRow(p.work.source, p.work.begin + i),
               p.row_bytes);
}

// Element i of a row: K first, then V.
__device__ __forceinline__ float Element(const RowFormat& format, const std::byte* row, int32_t i) {
  return format.encoding == RowEncoding::kBF16
             ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i])
             : reinterpret_cast<const float*>(row)[i];
}

// List after list, by all warps of the grid: the link likes reads that lie together.
__global__ void __launch_bounds__(kLinkThreads, 1)
    LoadRowsKernel(const __grid_constant__ Problem p) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const ListPages& source = p.work.source;
  const int32_t at_once = RowsAtOnce(source.format);
  for (int32_t list = 0; list < p.work.lists; ++list) {
    std::byte* rows = p.Of(list).rows;
    for (int32_t i = warp * at_once; i < p.work.count; i += warps * at_once) {
      MoveSome(
          min(at_once, p.work.count - i), source.format, source.format,
          [&](int32_t r) {
            return RowAt(source, p.work.source_list + list, SourceRow(source, p.work.begin + i + r),
                         p.row_bytes);
          },
          [&](int32_t r) { return rows + int64_t{i + r} * p.row_bytes; });
    }
  }
}

__global__ void __launch_bounds__(kLinkThreads, 1)
    StoreRowsKernel(const __grid_constant__ Problem p, const StoreExtent extent) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const RowFormat& format = p.work.store.format;
  const int32_t at_once = RowsAtOnce(format);
  for (int32_t list = 0; list < p.work.lists; ++list) {
    const Scratch s = p.Of(list);
    const int32_t* order = p.work.order + int64_t{list} * p.work.count;
    for (int32_t row = extent.from + warp * at_once; row < extent.to; row += warps * at_once) {
      MoveSome(
          min(at_once, extent.to - row), format, format,
          [&](int32_t r) {
            const int32_t i = row + r - p.work.begin;
            return TokenRow(p, s, list, i >= 0 && i < p.work.count ? order[i] : i);
          },
          [&](int32_t r) {
            return RowAt(p.work.store, p.work.first_list + list, row + r, p.row_bytes);
          });
    }
  }
}

// Rows that were loaded in the order of their clusters go back to where their tokens were.
__global__ void __launch_bounds__(kLinkThreads, 1)
    RestoreRowsKernel(const __grid_constant__ Problem p) {
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const RowFormat& format = p.work.store.format;
  const int32_t at_once = RowsAtOnce(format);
  for (int32_t list = 0; list < p.work.lists; ++list) {
    const Scratch s = p.Of(list);
    const int32_t* order = p.work.order + int64_t{list} * p.work.count;
    for (int32_t i = warp * at_once; i < p.work.count; i += warps * at_once) {
      MoveSome(
          min(at_once, p.work.count - i), format, format,
          [&](int32_t r) { return s.rows + int64_t{i + r} * p.row_bytes; },
          [&](int32_t r) {
            return RowAt(p.work.store, p.work.first_list + list, p.work.begin + order[i + r],
                         p.row_bytes);
          });
    }
  }
}

// A warp's lanes have eight channels each, in pairs: the i-th of them.
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

// Sums of all keys. A block a stretch of tokens, which its warps take in turns; a lane has eight
// channels.
__global__ void __launch_bounds__(kThreads) SumKeysKernel(const __grid_constant__ Problem p) {
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

__device__ float MeanOf(const Problem& p, const Scratch& s, int32_t channel) {
  return static_cast<float>(s.sums[channel] / p.work.count);
}

// Centred keys in bf16. A warp a token.
__global__ void __launch_bounds__(kThreads) CentreKernel(const __grid_constant__ Problem p) {
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

// Eight bf16 numbers, each to its sum.
__device__ __forceinline__ void AddEight(const uint4& packed, double (&sum)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(words[i] << 16);
    sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Channel `channel` of centroid c.
__device__ __forceinline__ void WriteCentroid(const Problem& p, const Scratch& s, int32_t c,
                                              int32_t channel, float value) {
  if (channel < p.d) s.centroids[int64_t{c} * p.d + channel] = value;
  s.targets[int64_t{c} * p.padded + channel] = __float2bfloat16_rn(value);
}

// Evenly strided keys. A warp a cluster.
__global__ void __launch_bounds__(kThreads)
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

// Every token of a segment to the centroid of the segment with the largest product, of equal ones
// the first. Warps keep their tokens in registers; centroids pass through shared memory. Within 32
// channels both operands take them in an order in which a lane's are side by side: sums do not
// mind.
template <int kDim>
struct AssignShape {
  static constexpr int kPointTiles = kDim > 128 ? 1 : 2;  // of 16 tokens, a warp
  static constexpr int kPoints = kWarps * kPointTiles * 16;
  static constexpr int kTile = kDim > 128 ? 32 : 64;  // centroids
  static constexpr int kRow = kDim + 32;              // rows' banks differ
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
    __syncthreads();  // the tile is there, and nobody reads the other buffer any more
    if (begin + Shape::kTile < clusters) load(begin + Shape::kTile, buffer ^ 1);
    // Only the last tile may have fewer centroids: elsewhere nobody asks.
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

// Where each cluster's tokens begin, and the tokens in the order of their clusters. All tokens of a
// segment are in clusters of it. Every block counts for itself: fewer kernels wait for each other.
__global__ void __launch_bounds__(kThreads)
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
    // A thread counts clusters that lie together.
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

// Of a padded key a lane has eight channels that lie side by side; a warp loads several keys at
// once.
template <int kDim>
struct KeyLanes {
  static constexpr int kChannels = 8;
  static constexpr int kOfKey = kDim / kChannels;  // lanes
  static constexpr int kKeys = 32 / kOfKey;        // a load
  static constexpr int kAtOnce = kKeys * kKeyLoads;
};

// Adds up the keys of tokens order[i] for i in [begin, begin + 32), [begin + step, ...), below end.
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

// Means of the clusters' centred keys, of length 1. A warp a cluster, of which it adds up the first
// tokens; what large ones have beyond is added up by all warps of the block, so that none waits for
// one warp.
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
  if (begin == end) return;  // it stays where it is
  // Its length is made 1 whatever it is divided by.
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

// The order of the tokens within their clusters; centroids, sums of the values and sizes to the
// index. A block a cluster.
__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ Problem p) {
  __shared__ int32_t of_warps[kWarps];
  __shared__ int32_t tokens[kFewTokens];
  extern __shared__ double sums[];  // [kWarps][2 * d]
  const auto list = static_cast<int32_t>(blockIdx.y);
  const Scratch s = p.Of(list);
  int32_t* sorted = p.work.order + int64_t{list} * p.work.count;
  const int32_t c = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t begin = s.offsets[c], size = s.offsets[c + 1] - begin;
  if (size <= kFewTokens) {
    for (int32_t i = threadIdx.x; i < size; i += kThreads) tokens[i] = s.order[begin + i];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < size; i += kThreads) {
      int32_t rank = 0;
      for (int32_t j = 0; j < size; ++j) rank += tokens[j] < tokens[i];
      sorted[begin + rank] = tokens[i];
    }
  } else {
    int32_t before = begin;
    for (int32_t first = 0; first < p.work.count; first += kThreads) {
      const int32_t t = first + static_cast<int32_t>(threadIdx.x);
      const bool mine = t < p.work.count && s.assignment[t] == c;
      const unsigned all = __ballot_sync(kFullMask, mine);
      if (lane == 0) of_warps[warp] = __popc(all);
      __syncthreads();
      int32_t at = before + __popc(all & ((1u << lane) - 1));
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) at += of_warps[w];
        before += of_warps[w];
      }
      if (mine) sorted[at] = t;
      __syncthreads();
    }
  }
  const RowFormat& format = p.work.index.format;
  const auto token_of = [&](int32_t j) {
    return size <= kFewTokens ? tokens[j] : s.order[begin + j];
  };
  // Warps take rows in turns.
  double* own = sums + warp * 2 * p.d;
  if (format.encoding == RowEncoding::kBF16 && p.d % 4 == 0) {
    for (int32_t first = 0; first < p.d / 4; first += 32) {
      const int32_t unit = first + lane;  // of eight elements
      if (unit >= p.d / 4) break;
      double sum[8] = {};
#pragma unroll 4
      for (int32_t j = warp; j < size; j += kWarps) {
        AddEight(reinterpret_cast<const uint4*>(TokenRow(p, s, list, token_of(j)))[unit], sum);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) own[unit * 8 + k] = sum[k];
    }
  } else {
    for (int32_t i = lane; i < 2 * p.d; i += 32) {
      double sum = 0;
      for (int32_t j = warp; j < size; j += kWarps) {
        sum += Element(format, TokenRow(p, s, list, token_of(j)), i);
      }
      own[i] = sum;
    }
  }
  __syncthreads();
  const int32_t cluster = p.work.first_cluster + c;
  std::byte* row = RowAt(p.work.index, p.work.first_list + list, cluster, p.row_bytes);
  for (int32_t i = threadIdx.x; i < 2 * p.d; i += kThreads) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * 2 * p.d + i];
    float value = static_cast<float>(sum);
    if (i < p.d) {
      value = size > 0 ? static_cast<float>(sum / size)
                       : s.centroids[int64_t{c} * p.d + i] + MeanOf(p, s, i);
    }
    StoreValue(row, format.encoding, i, value);
  }
  if (threadIdx.x == 0) {
    const int32_t page = cluster / p.work.index.page_rows;
    auto* sizes = reinterpret_cast<int32_t*>(
        p.work.index.pages[int64_t{page} * p.work.index.lists + p.work.first_list + list] +
        int64_t{p.work.index.page_rows} * p.row_bytes);
    sizes[cluster - page * p.work.index.page_rows] = size;
    p.work.begins[int64_t{list} * p.work.clusters + c] = p.work.begin + begin;
  }
}

template <int kDim>
struct Passes {
  static void Assign(CUstream_st* stream, const Problem& p, int32_t segments, int32_t tokens,
                     int32_t clusters) {
    constexpr int kPoints = AssignShape<kDim>::kPoints;
    const dim3 grid(static_cast<unsigned>((tokens + kPoints - 1) / kPoints),
                    static_cast<unsigned>(segments), static_cast<unsigned>(p.work.lists));
    AssignKernel<kDim><<<grid, kThreads, 0, stream>>>(p, tokens, clusters);
    LC_CUDA_LAUNCHED();
  }
  static void Move(CUstream_st* stream, const Problem& p, dim3 by_cluster) {
    MoveCentroidsKernel<kDim><<<by_cluster, kThreads, 0, stream>>>(p);
    LC_CUDA_LAUNCHED();
  }
};

// call(Passes<width of the padded keys>).
template <class Call>
void WithPasses(const Problem& p, const Call& call) {
  if (p.padded == 64) return call(Passes<64>());
  if (p.padded == 128) return call(Passes<128>());
  return call(Passes<256>());
}

Problem Checked(const ClusterBuildWork& work) {
  const RowFormat& format = work.store.format;
  LC_CHECK(!format.quantized() && format.head_dim >= 1 && format.head_dim <= 256, "head_dim {}",
           format.head_dim);
  LC_CHECK(work.source.format.encoding == format.encoding &&
           work.index.format.encoding == format.encoding);
  LC_CHECK(work.clusters >= 1 && work.clusters <= work.count && work.segments >= 1 &&
               work.clusters % work.segments == 0 && work.iterations >= 1,
           "{} clusters of {} tokens in {} segments", work.clusters, work.count, work.segments);
  LC_CHECK(work.lists >= 1 && work.lists <= 65535 && work.segments <= 65535);
  return MakeProblem(work);
}

void Load(CUstream_st* stream, const Problem& p) {
  LoadRowsKernel<<<kLinkBlocks, kLinkThreads, 0, stream>>>(p);
  LC_CUDA_LAUNCHED();
}

}  // namespace

size_t ClusterBuildScratchBytes(const RowFormat& format, int64_t count, int64_t clusters,
                                bool load) {
  ClusterBuildWork work;
  work.store.format = format;
  work.count = static_cast<int32_t>(count);
  work.clusters = static_cast<int32_t>(clusters);
  work.load = load;
  return static_cast<size_t>(MakeProblem(work).list_bytes);
}

void MakeClusters(Stream& stream, const ClusterBuildWork& work) {
  const Problem p = Checked(work);
  CUstream_st* handle = AsCuda(stream).handle();
  const auto lists = static_cast<unsigned>(work.lists);
  const auto over = [&](int64_t items, int64_t a_block, int64_t most) {
    return dim3(
        static_cast<unsigned>(std::clamp<int64_t>((items + a_block - 1) / a_block, 1, most)),
        lists);
  };
  if (work.load) Load(handle, p);
  LC_CUDA(cudaMemset2DAsync(p.Of(0).sums, static_cast<size_t>(p.list_bytes), 0,
                            sizeof(double) * static_cast<size_t>(p.d), lists, handle));
  SumKeysKernel<<<over(work.count, 16 * kWarps, 256), kThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
  CentreKernel<<<over(work.count, 8 * kWarps, 1024), kThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
  const dim3 by_cluster = over(work.clusters, kWarps, work.clusters);
  BeginCentroidsKernel<<<by_cluster, kThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
  WithPasses(p, [&](auto passes) {
    const auto assign = [&](int32_t segments, int32_t tokens, int32_t clusters) {
      passes.Assign(handle, p, segments, tokens, clusters);
      const dim3 blocks(static_cast<unsigned>((tokens + kPlacedTokens - 1) / kPlacedTokens),
                        static_cast<unsigned>(segments), lists);
      PlaceKernel<<<blocks, kThreads, 0, handle>>>(p, tokens, clusters);
      LC_CUDA_LAUNCHED();
    };
    for (int32_t i = 0; i + 1 < work.iterations; ++i) {
      assign(work.segments, p.segment_tokens, p.segment_clusters);
      passes.Move(handle, p, by_cluster);
    }
    assign(1, work.count, work.clusters);
  });
  const size_t sums = sizeof(double) * kWarps * 2 * static_cast<size_t>(p.d);
  FinishKernel<<<dim3(static_cast<unsigned>(work.clusters), lists), kThreads, sums, handle>>>(p);
  LC_CUDA_LAUNCHED();
}

void StoreClusters(Stream& stream, const ClusterBuildWork& work, const StoreExtent& extent,
                   int32_t sms) {
  const Problem p = Checked(work);
  LC_CHECK(extent.from <= work.begin && work.begin + work.count <= extent.to);
  LC_CHECK(!work.load || (extent.from == work.begin && work.begin + work.count == extent.to),
           "rows that are not loaded");
  StoreRowsKernel<<<static_cast<unsigned>(sms), kLinkThreads, 0, AsCuda(stream).handle()>>>(p,
                                                                                            extent);
  LC_CUDA_LAUNCHED();
}

void RestoreTokenOrder(Stream& stream, const ClusterBuildWork& work) {
  LC_CHECK(work.load);
  const Problem p = Checked(work);
  CUstream_st* handle = AsCuda(stream).handle();
  Load(handle, p);
  RestoreRowsKernel<<<kLinkBlocks, kLinkThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
