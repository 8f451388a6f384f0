// A team of blocks a (sequence, KV head), each with a stretch of its clusters: products with the
// group's queries, their softmax, the best of the summed scores, and their order.
#include "ops/cuda/common/vectors.cuh"
#include "ops/cuda/retrieve/softmax_select.cuh"
#include "ops/cuda/retroinfer/wave_pair.cuh"

namespace litecache::ops::cuda {
namespace {

// Query heads that a matrix product takes at a time: its 16 rows are their high and low halves.
constexpr int kHeadsAtOnce = 8;
constexpr int kTile = 8;  // clusters that it takes

struct SelectProblem {
  StepView step;
  WaveShape shape;
  WaveLayer layer;
  const float* q = nullptr;
  int64_t q_stride = 0;
  float scale = 0;           // times log2 e
  uint32_t* keys = nullptr;  // [pairs][max_clusters] where shared memory has no room
  int32_t* taken = nullptr;  // [pairs][max_ranked] clusters, ascending
  uint32_t* taken_keys = nullptr;
  TableAccess index;
};

// Clusters of each block of a team, whole tiles: no two blocks read one.
__host__ __device__ int32_t ClustersABlock(int32_t clusters, int32_t team) {
  const int32_t tiles = (clusters + kTile - 1) / kTile;
  return (tiles + team - 1) / team * kTile;
}

struct SelectShared {
  SoftmaxShared softmax;
  TopKShared top;
  int32_t filled, all_filled;
  uint32_t rank_keys[kTeamThreads];
  TellShared tell;
};

// logits[j * stride + c - first] of clusters [first, last), by all warps of a block; bf16 rows of a
// head_dim that is a multiple of 32. Lanes read 16 bytes, and both operands take the channels in
// the order in which that gives them.
template <int kDim>
__device__ void TensorLogits(const SelectProblem& p, const RowList& index, const float* q,
                             int32_t first, int32_t last, float* logits) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = p.shape.head_dim;
  for (int32_t j0 = 0; j0 < p.shape.group; j0 += kHeadsAtOnce) {
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
    for (int32_t base = first + warp * kTile; base < last; base += kTeamWarps * kTile) {
      const std::byte* row = index.Row(min(base + lane / 4, last - 1));
      uint4 keys[kDim / 32];
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        keys[j] = make_uint4(0, 0, 0, 0);
        if (32 * j < d) keys[j] = __ldcg(reinterpret_cast<const uint4*>(row) + 4 * j + lane % 4);
      }
      float sums[4] = {};
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        MultiplyAdd(sums, a[2 * j], keys[j].x, keys[j].y);
        MultiplyAdd(sums, a[2 * j + 1], keys[j].z, keys[j].w);
      }
      const int32_t c = base + lane % 4 * 2;
      if (head < p.shape.group) {
        float* out = logits + int64_t{head} * p.shape.max_clusters + c;
        if (c < last) out[0] = (sums[0] + sums[2]) * p.scale;
        if (c + 1 < last) out[1] = (sums[1] + sums[3]) * p.scale;
      }
      __syncwarp();
    }
  }
}

// The same for any rows. A warp a cluster.
__device__ void PlainLogits(const SelectProblem& p, const RowList& index, const float* q,
                            int32_t first, int32_t last, float* logits) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t d = p.shape.head_dim;
  for (int32_t c = first + warp; c < last; c += kTeamWarps) {
    const std::byte* row = index.Row(c);
    for (int32_t j = 0; j < p.shape.group; ++j) {
      float sum = 0;
      for (int32_t i = lane; i < d; i += 32) {
        sum = fmaf(WaveElement(p.layer.index.format, row, i), q[int64_t{j} * d + i], sum);
      }
      sum = WarpSum(sum);
      if (lane == 0) logits[int64_t{j} * p.shape.max_clusters + c] = sum * p.scale;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kTeamThreads, 1)
    SelectClustersKernel(const __grid_constant__ SelectProblem p) {
  extern __shared__ uint32_t shared_keys[];
  __shared__ SelectShared shared;
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
  const int32_t sequence = pair / p.shape.kv_heads, head = pair % p.shape.kv_heads;
  const bool leads = team.rank == 0 && threadIdx.x == 0;
  const bool exists = sequence < *p.step.count;
  const int32_t clusters = exists ? p.layer.sequences[sequence].clusters : 0;
  if (clusters == 0) {  // the same for the whole team
    if (leads) p.layer.choices[pair] = p.layer.told_choices[pair] = WaveChoice{};
    return;
  }
  const WaveSequence& wave = p.layer.sequences[sequence];
  const StepSequence& s = p.step.sequences[sequence];
  const RowList index = p.index.List(s, p.layer.index.list_of_head[head]);
  const auto size_of = [&](int32_t c) { return ClusterSize(index, c); };
  const int32_t group = p.shape.group;
  // Whole tiles of the products, so that no two blocks read one.
  const int32_t a_block = ClustersABlock(clusters, team.size);
  const int32_t first = min(clusters, team.rank * a_block);
  const int32_t last = min(clusters, first + a_block), count = last - first;
  const float* q = p.q + s.first_row * p.q_stride + int64_t{head} * group * p.shape.head_dim;
  float* logits = p.layer.logits + int64_t{pair} * group * p.shape.max_clusters;
  if constexpr (kDim > 0) {
    TensorLogits<kDim>(p, index, q, first, last, logits);
  } else {
    PlainLogits(p, index, q, first, last, logits);
  }
  if (threadIdx.x == 0) shared.filled = 0;
  __syncthreads();

  // Softmax of every head over the clusters that are not empty.
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto bounded = [](float x) { return fmaxf(fminf(x, kLargestScore), -kLargestScore); };
  int32_t filled = 0;
  for (int32_t c = first + threadIdx.x; c < last; c += kTeamThreads) filled += size_of(c) > 0;
  for (int32_t j = 0; j < group; ++j) {
    float maximum = -kLargestScore, sum = 0;
    for (int32_t c = first + threadIdx.x; c < last; c += kTeamThreads) {
      if (size_of(c) == 0) continue;
      const float x = bounded(logits[int64_t{j} * p.shape.max_clusters + c]);
      const float higher = fmaxf(maximum, x);
      sum = sum * Exp2(maximum - higher) + Exp2(x - higher);
      maximum = higher;
    }
    const float highest = WarpMax(maximum);
    const float total = WarpSum(sum * Exp2(maximum - highest));
    if (lane == 0) {
      shared.softmax.warp_maximum[warp][j] = highest;
      shared.softmax.warp_sum[warp][j] = total;
    }
  }
  filled = __reduce_add_sync(kFullMask, filled);
  if (lane == 0 && filled > 0) atomicAdd(&shared.filled, filled);
  CombineSoftmax(team, group, &shared.softmax);
  if (warp == 0) {
    const int32_t of_block = lane < team.size ? *team.Of(&shared.filled, lane) : 0;
    const int32_t all = __reduce_add_sync(kFullMask, of_block);
    if (lane == 0) shared.all_filled = all;
  }
  uint32_t* keys =
      p.keys == nullptr ? shared_keys : p.keys + int64_t{pair} * p.shape.max_clusters + first;
  for (int32_t c = first + threadIdx.x; c < last; c += kTeamThreads) {
    uint32_t key = 0;  // of empty ones
    if (size_of(c) > 0) {
      float score = 0;
      for (int32_t j = 0; j < group; ++j) {
        const float x = bounded(logits[int64_t{j} * p.shape.max_clusters + c]);
        score = fmaf(Exp2(x - shared.softmax.team_maximum[j]), shared.softmax.factor[j], score);
      }
      key = max(OrderedKey(score), 1u);
    }
    keys[c - first] = key;
  }
  __syncthreads();

  // The best `ranked`, then the best of what is left.
  const int32_t ranked = min(wave.ranked, shared.all_filled);
  const int32_t unranked = min(wave.unranked, shared.all_filled - ranked);
  int32_t* ids = p.layer.ids + int64_t{pair} * p.shape.max_chosen;
  int32_t* taken = p.taken + int64_t{pair} * p.shape.max_ranked;
  uint32_t* taken_keys = p.taken_keys + int64_t{pair} * p.shape.max_ranked;
  const auto key_at = [&](int32_t i) { return keys[i]; };
  if (ranked > 0) {
    const Threshold threshold = FindThreshold(team, shared.top, count, ranked, key_at);
    TakeAbove(team, shared.top, count, threshold, key_at, [&](int32_t order, int32_t i) {
      taken[order] = first + i;
      taken_keys[order] = keys[i];
      keys[i] = 0;  // no candidate any more; nobody else reads it in this pass
    });
  }
  __syncthreads();
  if (unranked > 0) {
    const Threshold threshold = FindThreshold(team, shared.top, count, unranked, key_at);
    TakeAbove(team, shared.top, count, threshold, key_at,
              [&](int32_t order, int32_t i) { ids[ranked + order] = first + i; });
  }
  team.Sync();  // of all blocks, what they have taken; and none ends while others read its memory

  // The ranked ones' order, by counting the better ones of each.
  for (int32_t base = team.rank * kTeamThreads; base < ranked; base += team.size * kTeamThreads) {
    const int32_t mine = base + static_cast<int32_t>(threadIdx.x);
    const uint32_t key = mine < ranked ? __ldcg(taken_keys + mine) : 0;
    int32_t rank = 0;
    for (int32_t begin = 0; begin < ranked; begin += kTeamThreads) {
      __syncthreads();
      const int32_t other = begin + static_cast<int32_t>(threadIdx.x);
      shared.rank_keys[threadIdx.x] = other < ranked ? __ldcg(taken_keys + other) : 0;
      __syncthreads();
      const int32_t some = min(kTeamThreads, ranked - begin);
      for (int32_t i = 0; i < some; ++i) {
        const uint32_t k = shared.rank_keys[i];
        rank += k > key || (k == key && begin + i < mine);
      }
    }
    if (mine < ranked) ids[rank] = __ldcg(taken + mine);
  }
  team.Sync();
  if (team.rank != 0) return;
  TellChoice(p.shape, p.layer, index, pair, wave.buffer_blocks,
             {.ranked = ranked, .count = ranked + unranked}, shared.tell);
}

// The largest team that the last launch had room for.
struct FittingTeam {
  void (*kernel)(SelectProblem) = nullptr;
  int pairs = 0;
  int32_t clusters = 0;
  int team = 0;
  bool SameAs(const FittingTeam& other) const {
    return kernel == other.kernel && pairs == other.pairs && clusters == other.clusters;
  }
};

}  // namespace

size_t SelectClustersScratchBytes(const WaveShape& shape, int64_t capacity) {
  const auto words =
      static_cast<size_t>(shape.max_clusters) + 2 * static_cast<size_t>(shape.max_ranked);
  return static_cast<size_t>(capacity * shape.kv_heads) * words * sizeof(uint32_t);
}

void SelectClusters(Stream& stream, const StepView& step, const WaveShape& shape,
                    const WaveLayer& layer, const MatrixView& q, float scale, void* scratch) {
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxSoftmaxGroup, "a group of {}", shape.group);
  LC_CHECK(scale > 0, "scale {}", scale);
  LC_CHECK(q.dtype == DType::kF32 &&
           q.cols == int64_t{shape.kv_heads} * shape.group * shape.head_dim);
  const CudaStream& cuda = AsCuda(stream);
  const int pairs = step.capacity * shape.kv_heads;
  if (pairs == 0) return;
  const auto of_pairs = static_cast<size_t>(pairs);
  auto* words = static_cast<uint32_t*>(scratch);
  SelectProblem p;
  p.step = step;
  p.shape = shape;
  p.layer = layer;
  p.q = q.Row<const float>(0);
  p.q_stride = q.stride;
  p.scale = scale * kLog2E;
  p.taken = reinterpret_cast<int32_t*>(words);
  p.taken_keys = words + of_pairs * static_cast<size_t>(shape.max_ranked);
  uint32_t* keys = words + 2 * of_pairs * static_cast<size_t>(shape.max_ranked);
  p.index = TableAccess(layer.index);
  const size_t limit =
      static_cast<size_t>(DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) -
      sizeof(SelectShared) - 1024;
  const bool tensor = layer.index.format.encoding == RowEncoding::kBF16 &&
                      shape.head_dim % 32 == 0 && shape.head_dim <= 128 && q.stride % 2 == 0;
  const auto kernel = !tensor               ? SelectClustersKernel<0>
                      : shape.head_dim > 64 ? SelectClustersKernel<128>
                                            : SelectClustersKernel<64>;
  const auto launch = [&](int team) {
    const size_t bytes = 4 * static_cast<size_t>(ClustersABlock(shape.max_clusters, team));
    SelectProblem problem = p;
    problem.keys = bytes <= limit ? nullptr : keys;
    return LaunchTeams(kernel, cuda, pairs, team, problem.keys == nullptr ? bytes : 0, limit,
                       problem);
  };
  // What fits is asked of the driver once, not for every layer.
  static thread_local FittingTeam fitting;
  const FittingTeam wanted{kernel, pairs, shape.max_clusters, 0};
  if (fitting.SameAs(wanted) && launch(fitting.team)) return;
  WithLargestTeam(cuda, pairs, [&](int team) {
    if (!launch(team)) return false;
    fitting = wanted;
    fitting.team = team;
    return true;
  });
}

}  // namespace litecache::ops::cuda
