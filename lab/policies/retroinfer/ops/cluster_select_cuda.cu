// Two kernels: many small blocks multiply centroids with the queries; then one block per (sequence,
// KV head) turns a cluster's products into one score by their softmax, selects the best and orders
// them.
#include <algorithm>
#include <bit>

#include "lab/policies/retroinfer/ops/best_and_next.cuh"
#include "lab/policies/retroinfer/ops/wave_pair.cuh"
#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/vectors.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kScoreThreads = 128;
constexpr int kScoreWarps = kScoreThreads / 32;
// Query heads per matrix product: its 16 rows are their high and low halves.
constexpr int kHeadsAtOnce = 8;
constexpr int kTile = 8;  // clusters per product
// Blocks of products: four per SM, which is the maximum resident, and at most this many per pair.
constexpr int kBlocksAnSm = 4, kMaxParts = 64;
// Pairs with few clusters use small blocks, whose barriers are shorter.
constexpr int kFewThreads = 256;
constexpr int32_t kFewClusters = 1024;
// The logit of an empty cluster; others are bounded.
constexpr float kEmpty = -INFINITY;

struct SelectProblem {
  StepView step;
  WaveShape shape;
  WaveLayer layer;
  const float* q = nullptr;
  int64_t q_stride = 0;
  float scale = 0;             // times log2 e
  int32_t parts = 0;           // blocks of products per pair
  float2* softmax = nullptr;   // [pairs][parts][group]: maximum, sum relative to it
  uint64_t* ranked = nullptr;  // [pairs][ranked_room] if shared memory is too small
  uint32_t* keys = nullptr;    // [pairs][max_clusters] if shared memory is too small
  int32_t ranked_room = 0;     // a power of two
  TableAccess index;
};

// Adds terms to the maximum and the sum of a softmax.
__device__ __forceinline__ void Include(float2* softmax, float maximum, float sum) {
  const float higher = fmaxf(softmax->x, maximum);
  softmax->y = softmax->y * Exp2(softmax->x - higher) + sum * Exp2(maximum - higher);
  softmax->x = higher;
}

__device__ __forceinline__ float LogitOf(const RowList& index, int32_t cluster, float product,
                                         float scale) {
  if (ClusterSize(index, cluster) == 0) return kEmpty;
  return fmaxf(fminf(product * scale, kLargestScore), -kLargestScore);
}

// Logits of this warp's tiles of the pair, and their softmax for each head: bf16 rows with a
// head_dim that is a multiple of 32. Lanes read 16 bytes, and both operands use the resulting order
// of the channels.
template <int kDim>
__device__ void TensorLogits(const SelectProblem& p, const RowList& index, const float* q,
                             int32_t clusters, float* logits, float2* softmax) {
  const int32_t lane = threadIdx.x % 32, d = p.shape.head_dim;
  const int32_t first = static_cast<int32_t>(blockIdx.x * kScoreWarps + threadIdx.x / 32) * kTile;
  const int32_t stride = p.parts * kScoreWarps * kTile;
  for (int32_t j0 = 0; j0 < p.shape.group; j0 += kHeadsAtOnce) {
    uint4 keys[kDim / 32];
    const auto load = [&](int32_t base) {
      const std::byte* row = index.Row(min(base + lane / 4, clusters - 1));
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        keys[j] = make_uint4(0, 0, 0, 0);
        if (32 * j < d) keys[j] = __ldcg(reinterpret_cast<const uint4*>(row) + 4 * j + lane % 4);
      }
    };
    if (first < clusters) load(first);
    uint32_t a[kDim / 16][4];
    const int32_t head = j0 + lane / 4;
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t c = s / 2 * 32 + lane % 4 * 8 + s % 2 * 4 + h * 2;
        float2 x = make_float2(0, 0);
        if (head < p.shape.group && c < d) {
          x = *reinterpret_cast<const float2*>(q + int64_t{head} * d + c);
        }
        const uint32_t high = PackBf16(x.x, x.y);
        a[s][2 * h] = high;
        a[s][2 * h + 1] =
            PackBf16(x.x - __uint_as_float(high << 16), x.y - __uint_as_float(high & 0xffff0000u));
      }
    }
    float2 mine = make_float2(-kLargestScore, 0);
    for (int32_t base = first; base < clusters; base += stride) {
      float sums[4] = {};
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        MultiplyAdd(sums, a[2 * j], keys[j].x, keys[j].y);
        MultiplyAdd(sums, a[2 * j + 1], keys[j].z, keys[j].w);
      }
      if (base + stride < clusters) load(base + stride);
      const int32_t c = base + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (head >= p.shape.group || c + i >= clusters) continue;
        const float x = LogitOf(index, c + i, sums[i] + sums[i + 2], p.scale);
        logits[int64_t{head} * p.shape.max_clusters + c + i] = x;
        if (x != kEmpty) Include(&mine, x, 1);
      }
      __syncwarp();
    }
    for (int step = 1; step < 4; step *= 2) {
      const float maximum = __shfl_xor_sync(kFullMask, mine.x, step);
      const float sum = __shfl_xor_sync(kFullMask, mine.y, step);
      Include(&mine, maximum, sum);
    }
    if (lane % 4 == 0 && head < p.shape.group) softmax[head] = mine;
  }
}

// The same for any rows. One warp per cluster.
__device__ void PlainLogits(const SelectProblem& p, const RowList& index, const float* q,
                            int32_t clusters, float* logits, float2* softmax) {
  const int32_t lane = threadIdx.x % 32, d = p.shape.head_dim;
  const auto first = static_cast<int32_t>(blockIdx.x * kScoreWarps + threadIdx.x / 32);
  for (int32_t j = 0; j < p.shape.group; ++j) {
    float2 mine = make_float2(-kLargestScore, 0);
    for (int32_t c = first; c < clusters; c += p.parts * kScoreWarps) {
      const std::byte* row = index.Row(c);
      float sum = 0;
      for (int32_t i = lane; i < d; i += 32) {
        sum = fmaf(WaveElement(p.layer.index.format, row, i), q[int64_t{j} * d + i], sum);
      }
      const float x = LogitOf(index, c, WarpSum(sum), p.scale);
      if (lane == 0) logits[int64_t{j} * p.shape.max_clusters + c] = x;
      if (x != kEmpty) Include(&mine, x, 1);
    }
    if (lane == 0) softmax[j] = mine;
  }
}

template <int kDim>
__global__ void __launch_bounds__(kScoreThreads, kBlocksAnSm)
    ScoreClustersKernel(const __grid_constant__ SelectProblem p) {
  __shared__ float2 of_warps[kScoreWarps][kMaxSoftmaxGroup];
  WaitForKernelBefore();
  LetNextKernelStart();
  const auto pair = static_cast<int32_t>(blockIdx.y);
  const int32_t sequence = pair / p.shape.kv_heads, head = pair % p.shape.kv_heads;
  if (sequence >= *p.step.count) return;
  const int32_t clusters = p.layer.sequences[sequence].clusters, group = p.shape.group;
  if (clusters == 0) return;
  const StepSequence& s = p.step.sequences[sequence];
  const RowList index = p.index.List(s, p.layer.index.list_of_head[head]);
  const float* q = p.q + s.first_row * p.q_stride + int64_t{head} * group * p.shape.head_dim;
  float* logits = p.layer.logits + int64_t{pair} * group * p.shape.max_clusters;
  float2* of_warp = of_warps[threadIdx.x / 32];
  if constexpr (kDim > 0) {
    TensorLogits<kDim>(p, index, q, clusters, logits, of_warp);
  } else {
    PlainLogits(p, index, q, clusters, logits, of_warp);
  }
  __syncthreads();
  float2* softmax = p.softmax + (int64_t{pair} * p.parts + blockIdx.x) * group;
  for (int32_t j = threadIdx.x; j < group; j += kScoreThreads) {
    float2 all = of_warps[0][j];
    for (int w = 1; w < kScoreWarps; ++w) Include(&all, of_warps[w][j].x, of_warps[w][j].y);
    softmax[j] = all;
  }
}

struct TakeShared {
  float maximum[kMaxSoftmaxGroup], factor[kMaxSoftmaxGroup];
  int32_t filled;
  BestAndNextShared take;
  TellShared tell;
};

// Sorts in descending order with all threads of a block; n must be a power of two.
template <int kThreads>
__device__ void SortDescending(uint64_t* items, int32_t n) {
  for (int32_t run = 2; run <= n; run *= 2) {
    for (int32_t step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int32_t i = threadIdx.x; i < n / 2; i += kThreads) {
        const int32_t low = 2 * i - (i & (step - 1)), high = low + step;
        const uint64_t x = items[low], y = items[high];
        if ((x < y) == ((low & run) == 0)) {
          items[low] = y;
          items[high] = x;
        }
      }
    }
  }
  __syncthreads();
}

// One block per pair.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    TakeClustersKernel(const __grid_constant__ SelectProblem p, bool ranked_shared,
                       bool keys_shared) {
  extern __shared__ uint64_t dynamic[];
  __shared__ TakeShared shared;
  const auto pair = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const int32_t sequence = pair / p.shape.kv_heads, head = pair % p.shape.kv_heads;
  const int32_t group = p.shape.group, lane = thread % 32, warp = thread / 32;
  // Read before the wait: the step was complete before the products began, which waited as well.
  const bool exists = sequence < *p.step.count;
  const WaveSequence wave = exists ? p.layer.sequences[sequence] : WaveSequence{};
  const int32_t clusters = wave.clusters;
  RowList index;
  if (clusters > 0) {
    index = p.index.List(p.step.sequences[sequence], p.layer.index.list_of_head[head]);
  }
  WaitForKernelBefore();
  LetNextKernelStart();
  if (clusters == 0) {
    if (thread == 0) p.layer.choices[pair] = p.layer.told_choices[pair] = WaveChoice{};
    return;
  }
  uint64_t* best = ranked_shared ? dynamic : p.ranked + int64_t{pair} * p.ranked_room;
  uint32_t* keys = keys_shared
                       ? reinterpret_cast<uint32_t*>(dynamic + (ranked_shared ? p.ranked_room : 0))
                       : p.keys + int64_t{pair} * p.shape.max_clusters;
  const float2* softmax = p.softmax + int64_t{pair} * p.parts * group;
  for (int32_t j = warp; j < group; j += kThreads / 32) {
    float2 all = make_float2(-kLargestScore, 0);
    for (int32_t part = lane; part < p.parts; part += 32) {
      const float2 of_part = softmax[int64_t{part} * group + j];
      Include(&all, of_part.x, of_part.y);
    }
    const float maximum = WarpMax(all.x);
    const float sum = WarpSum(all.y * Exp2(all.x - maximum));
    if (lane == 0) {
      shared.maximum[j] = maximum;
      shared.factor[j] = 1 / sum;
    }
  }
  if (thread == 0) shared.filled = 0;
  __syncthreads();

  const float* logits = p.layer.logits + int64_t{pair} * group * p.shape.max_clusters;
  int32_t filled = 0;
  constexpr int kAtOnce = 4;  // independent loads
  for (int32_t first = thread; first < clusters; first += kAtOnce * kThreads) {
    float scores[kAtOnce] = {}, x[kAtOnce];
#pragma unroll 4
    for (int32_t j = 0; j < group; ++j) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int32_t c = first + u * kThreads;
        x[u] = c < clusters ? logits[int64_t{j} * p.shape.max_clusters + c] : kEmpty;
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        scores[u] = fmaf(Exp2(x[u] - shared.maximum[j]), shared.factor[j], scores[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int32_t c = first + u * kThreads;
      if (c < clusters) keys[c] = x[u] == kEmpty ? 0 : max(OrderedKey(scores[u]), 1u);
      filled += x[u] != kEmpty;
    }
  }
  filled = __reduce_add_sync(kFullMask, filled);
  if (lane == 0 && filled > 0) atomicAdd(&shared.filled, filled);
  __syncthreads();

  // The best `ranked`, then the best of the others.
  const int32_t ranked = min(wave.ranked, shared.filled);
  const int32_t unranked = min(wave.unranked, shared.filled - ranked);
  int32_t* ids = p.layer.ids + int64_t{pair} * p.shape.max_chosen;
  const auto room = static_cast<int32_t>(1u << (32 - __clz(max(ranked, 1) - 1)));
  for (int32_t i = ranked + thread; i < room; i += kThreads) best[i] = 0;
  TakeBestAndNext<kThreads>(
      shared.take, keys, clusters, ranked, unranked,
      [&](int32_t order, int32_t i) {
        // Of equal keys, the lower cluster becomes the larger item.
        best[order] = uint64_t{keys[i]} << 32 | ~static_cast<uint32_t>(i);
      },
      [&](int32_t order, int32_t i) { ids[ranked + order] = i; });
  SortDescending<kThreads>(best, room);
  for (int32_t i = thread; i < ranked; i += kThreads) {
    ids[i] = static_cast<int32_t>(~static_cast<uint32_t>(best[i]));
  }
  __syncthreads();  // the ids are written
  RecordChoice<kThreads>(
      p.shape, p.layer, index, pair, wave.buffer_blocks,
      {.ranked = ranked, .count = ranked + unranked}, shared.tell, [&](int32_t i) {
        return i < ranked ? static_cast<int32_t>(~static_cast<uint32_t>(best[i])) : __ldcg(ids + i);
      });
}

int64_t RankedRoom(const WaveShape& shape) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint32_t>(std::max(shape.max_ranked, 1))));
}

template <int kThreads>
void Take(CudaStream& stream, const SelectProblem& p, int pairs) {
  static const size_t limit = AllowSharedMemory(TakeClustersKernel<kThreads>);
  const size_t ranked_bytes = sizeof(uint64_t) * static_cast<size_t>(p.ranked_room);
  const size_t key_bytes = sizeof(uint32_t) * static_cast<size_t>(p.shape.max_clusters);
  const bool ranked_shared = ranked_bytes <= limit;
  const size_t left = limit - (ranked_shared ? ranked_bytes : 0);
  const bool keys_shared = key_bytes <= left;
  LaunchOverlapping(stream, TakeClustersKernel<kThreads>, dim3(static_cast<unsigned>(pairs)),
                    dim3(kThreads), limit - left + (keys_shared ? key_bytes : 0), p, ranked_shared,
                    keys_shared);
}

}  // namespace

size_t SelectClustersScratchBytes(const WaveShape& shape, int64_t capacity) {
  const int64_t of_pair = RankedRoom(shape) * int64_t{sizeof(uint64_t)} +
                          int64_t{kMaxParts} * shape.group * int64_t{sizeof(float2)} +
                          int64_t{shape.max_clusters} * int64_t{sizeof(uint32_t)};
  return static_cast<size_t>(capacity * shape.kv_heads * of_pair);
}

void SelectClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                    const WaveLayer& layer, const MatrixView& q, float scale, void* scratch) {
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxSoftmaxGroup, "a group of {}", shape.group);
  LC_CHECK(scale > 0, "scale {}", scale);
  LC_CHECK(q.dtype == DType::kF32 &&
           q.cols == int64_t{shape.kv_heads} * shape.group * shape.head_dim);
  CudaStream& cuda = AsCuda(stream);
  const int pairs = step.capacity * shape.kv_heads;
  if (pairs == 0) return;
  SelectProblem p;
  p.step = step;
  p.shape = shape;
  p.layer = layer;
  p.q = q.Row<const float>(0);
  p.q_stride = q.stride;
  p.scale = scale * kLog2E;
  const int32_t tiles = (shape.max_clusters + kTile - 1) / kTile;
  p.parts = std::clamp((tiles + kScoreWarps - 1) / kScoreWarps, 1,
                       std::clamp(kBlocksAnSm * cuda.sm_count() / pairs, 1, kMaxParts));
  p.ranked_room = static_cast<int32_t>(RankedRoom(shape));
  p.ranked = static_cast<uint64_t*>(scratch);
  p.softmax = reinterpret_cast<float2*>(p.ranked + int64_t{pairs} * p.ranked_room);
  p.keys = reinterpret_cast<uint32_t*>(p.softmax + int64_t{pairs} * kMaxParts * shape.group);
  p.index = TableAccess(layer.index);
  const bool tensor = layer.index.format.encoding == RowEncoding::kBF16 &&
                      shape.head_dim % 32 == 0 && shape.head_dim <= 128 && q.stride % 2 == 0;
  const auto score = !tensor               ? ScoreClustersKernel<0>
                     : shape.head_dim > 64 ? ScoreClustersKernel<128>
                                           : ScoreClustersKernel<64>;
  LaunchOverlapping(cuda, score, dim3(static_cast<unsigned>(p.parts), static_cast<unsigned>(pairs)),
                    dim3(kScoreThreads), 0, p);
  if (shape.max_clusters <= kFewClusters) {
    Take<kFewThreads>(cuda, p, pairs);
  } else {
    Take<kTeamThreads>(cuda, p, pairs);
  }
}

}  // namespace litecache::lab::ops::cuda
