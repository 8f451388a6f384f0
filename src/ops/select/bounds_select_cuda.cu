#include "ops/select/litecache_select.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kTokens = BoundsFormat::kTokens;
constexpr int32_t kGroup = BoundsFormat::kGroup;
constexpr int32_t kHeadsAtOnce = 4;
constexpr int32_t kSharedEntries = 4096;  // sorted in shared memory, otherwise in scratch

// Sorts in ascending order; count is a power of two. Called by all threads of the block.
__device__ void Sort(uint64_t* entries, int32_t count) {
  for (int32_t size = 2; size <= count; size *= 2) {
    for (int32_t stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int32_t i = threadIdx.x; i < count / 2; i += kTeamThreads) {
        const int32_t low = 2 * i - i % stride, high = low + stride;
        const uint64_t a = entries[low], b = entries[high];
        if ((a > b) == ((low & size) == 0)) {
          entries[low] = b;
          entries[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// One team per pair, as in SelectKernel. Scratch of a pair: [group][stride] keys of the blocks,
// [group][2 stride] entries to sort, [stride] best ranks, [stride] selected blocks.
__global__ void __launch_bounds__(kTeamThreads, 1)
    BoundsSelectKernel(const __grid_constant__ StepView step,
                       const __grid_constant__ LiteCacheShape shape,
                       const __grid_constant__ LiteCacheLayer layer,
                       const __grid_constant__ SelectSource source, uint32_t* scratch,
                       int64_t scratch_words, int32_t stride) {
  extern __shared__ uint4 dynamic[];
  __shared__ TopKShared shared;
  const ClusterTeam team;
  const int32_t pair = static_cast<int32_t>(blockIdx.x) / team.size;
  const bool leads = team.rank == 0 && threadIdx.x == 0;
  SelectTarget target;
  if (!FindTarget(step, shape, layer, source, pair, &target)) {
    if (leads) layer.selected_count[pair] = 0;
    return;
  }
  int32_t* selected = layer.selected + int64_t{pair} * shape.max_rows;
  const int32_t candidates = target.end - target.begin, k = target.k;
  const int32_t of_team = team.rank * kTeamThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t team_threads = team.size * kTeamThreads;
  if (candidates <= k) {
    for (int32_t i = of_team; i < candidates; i += team_threads) selected[i] = target.begin + i;
    if (leads) layer.selected_count[pair] = candidates;
    return;
  }
  const int32_t d = shape.head_dim, heads = shape.group;
  const int32_t first = target.begin / kTokens;
  const int32_t blocks = (target.end - 1) / kTokens + 1 - first;
  const int32_t count = min(max(k / kTokens, 1), blocks);
  uint32_t* keys = scratch + pair * scratch_words;
  auto* sorted = reinterpret_cast<uint64_t*>(keys + int64_t{heads} * stride);
  auto* best = reinterpret_cast<int32_t*>(sorted + int64_t{heads} * 2 * stride);
  int32_t* list = best + stride;
  auto* entries = reinterpret_cast<uint64_t*>(dynamic);
  auto* queries = reinterpret_cast<float*>(entries + kSharedEntries);  // [heads, padded][d]
  const int32_t padded = (heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  for (int32_t i = threadIdx.x; i < padded * d; i += kTeamThreads) {
    queries[i] = i < heads * d ? target.q[i] : 0;
  }
  __syncthreads();

  // Bounds, one lane per block: 16 lanes read a channel of 16 blocks.
  const int32_t metadata = layer.metadata.list_of_head[target.head];
  const int32_t page_tokens = layer.metadata.page_rows;
  for (int32_t b = of_team - first % kGroup; b < blocks; b += team_threads) {
    if (b < 0) continue;
    const int32_t token = (first + b) * kTokens, page = token / page_tokens;
    const auto* pairs =
        reinterpret_cast<const uint32_t*>(
            PageOf(*target.sequence, layer.metadata, metadata, page)) +
        int64_t{(token - page * page_tokens) / BoundsFormat::kGroupTokens} * kGroup * d +
        (first + b) % kGroup;
    for (int32_t j0 = 0; j0 < heads; j0 += kHeadsAtOnce) {
      float high[kHeadsAtOnce] = {}, low[kHeadsAtOnce] = {};
      const float* q = queries + j0 * d;
#pragma unroll 4
      for (int32_t c = 0; c < d; ++c) {
        const uint32_t bounds = pairs[c * kGroup];
        const float least = __uint_as_float(bounds << 16);
        const float greatest = __uint_as_float(bounds & 0xffff0000u);
#pragma unroll
        for (int j = 0; j < kHeadsAtOnce; ++j) {
          const float x = q[j * d + c];
          high[j] = fmaf(greatest, fmaxf(x, 0.0f), high[j]);
          low[j] = fmaf(least, fminf(x, 0.0f), low[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kHeadsAtOnce; ++j) {
        if (j0 + j < heads) keys[int64_t{j0 + j} * stride + b] = OrderedKey(high[j] + low[j]);
      }
    }
    best[b] = count;  // no block beyond a head's first `count` can be selected
  }
  team.Sync();

  // Ranks of the blocks for each head, one thread block per head.
  for (int32_t j = team.rank; j < heads; j += team.size) {
    const uint32_t* of_head = keys + int64_t{j} * stride;
    const auto key_at = [&](int32_t b) { return of_head[b]; };
    int32_t room = 1;
    while (room < count) room *= 2;
    uint64_t* order = room <= kSharedEntries ? entries : sorted + int64_t{j} * 2 * stride;
    for (int32_t i = count + threadIdx.x; i < room; i += kTeamThreads) order[i] = ~uint64_t{0};
    const BlockTeam block;
    const Threshold threshold = FindThreshold(block, shared, blocks, count, key_at);
    TakeAbove(block, shared, blocks, threshold, key_at, [&](int32_t i, int32_t b) {
      order[i] = uint64_t{~of_head[b]} << 32 | static_cast<uint32_t>(b);
    });
    Sort(order, room);
    for (int32_t i = threadIdx.x; i < count; i += kTeamThreads) {
      atomicMin(best + static_cast<uint32_t>(order[i]), i);
    }
    __syncthreads();
  }
  team.Sync();

  const int32_t a_block = (blocks + team.size - 1) / team.size;
  const int32_t begin = min(blocks, team.rank * a_block), end = min(blocks, begin + a_block);
  const auto rank_key = [&](int32_t i) { return ~static_cast<uint32_t>(best[begin + i]); };
  const Threshold threshold = FindThreshold(team, shared, end - begin, count, rank_key);
  TakeAbove(team, shared, end - begin, threshold, rank_key,
            [&](int32_t i, int32_t b) { list[i] = begin + b; });
  team.Sync();

  // Tokens of the blocks; the first and the last block are cut to the candidates.
  const int32_t skipped = list[0] == 0 ? target.begin - first * kTokens : 0;
  for (int32_t i = of_team; i < count * kTokens; i += team_threads) {
    const int32_t token = (first + list[i / kTokens]) * kTokens + i % kTokens;
    const int32_t index = i - skipped;
    if (token >= target.begin && token < target.end && index < k) selected[index] = token;
  }
  if (leads) {
    const int32_t last = (first + list[count - 1]) * kTokens;
    const int32_t cut = max(0, last + kTokens - target.end);
    const int32_t total = min(k, count * kTokens - skipped - cut);
    layer.selected_count[pair] = total;
    if (target.list < 0) {
      atomicAdd(&layer.counters[target.head].rows_selected, static_cast<unsigned long long>(total));
    }
  }
  team.Sync();  // no block ends while others read its shared memory
}

}  // namespace

void BoundsSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const BoundsFormat& format, const SelectQuery& query,
                  void* scratch) {
  LC_CHECK(format.head_dim == shape.head_dim, "head_dim {} and {}", format.head_dim,
           shape.head_dim);
  LC_CHECK(layer.metadata.page_rows % BoundsFormat::kGroupTokens == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const SelectSource source = SourceOf(shape, query);
  const CudaStream& cuda = AsCuda(stream);
  const int pairs = step.capacity * shape.kv_heads;
  const int64_t heads = (shape.group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const size_t bytes = static_cast<size_t>(8 * kSharedEntries + 4 * heads * shape.head_dim);
  const size_t limit = SharedLimit();
  LC_CHECK(bytes <= limit, "a group of {} query heads", shape.group);
  WithLargestTeam(cuda, pairs, [&](int team) {
    return LaunchTeams(BoundsSelectKernel, cuda, pairs, team, bytes, limit, step, shape, layer,
                       source, static_cast<uint32_t*>(scratch),
                       BoundsScratchWords(shape.group, step.max_context),
                       static_cast<int32_t>(BoundsBlocks(step.max_context)));
  });
}

}  // namespace litecache::ops::cuda
