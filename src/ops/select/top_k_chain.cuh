// Selection of the k best rows as a chain of short kernels with small blocks, which leave room on
// an SM for products that run at the same time. The blocks of a launch divide the candidates of the
// pairs that select, in items of kChainItem tokens:
//   begin   finds out what to select, clears the histograms (and hashes the queries)
//   score   makes a key of every candidate and a histogram of all keys (one or two kernels)
//   take    finds the k-th largest key and writes the positions: one cluster of blocks per pair
//           (take_best_cuda.cu)
// On GPUs without clusters, take is two kernels:
//   count   counts, item by item, the keys above the bin of the k-th largest key, lists the keys
//           in it, and finds the k-th largest
//   write   writes the positions
// Each overlaps the end of the previous one (overlap.cuh). Exact and deterministic.
#pragma once

#include "ops/common/overlap.cuh"
#include "ops/select/litecache_select.cuh"

namespace litecache::ops::cuda {

constexpr int kChainThreads = 256;
constexpr int kChainWarps = kChainThreads / 32;
constexpr int kTokensAThread = kChainItem / kChainThreads;
static_assert(kTokensAThread == 4);

// The least key of a candidate; 0 means no candidate.
constexpr uint32_t kLeastKey = 1;
__device__ __forceinline__ uint32_t ChainKey(float score) {
  return max(OrderedKey(score), kLeastKey);
}

// A monotone map of keys to kCoarseBins bins: two keys of a bin share all but the last `shift`
// bits, except in the first and last bin, which also take all keys beyond the range.
struct KeyMap {
  int32_t shift = 18;  // for OrderedKey: 32 bins between a number and its double
  int32_t lowest = 0;  // key >> shift of the first bin; with signs: of the bin next to 0
  bool signs = false;  // half of the bins are for numbers below 0

  static constexpr int32_t kZero = 1 << 13;  // OrderedKey(0) >> 18
  static constexpr int32_t kHalf = kCoarseBins / 2;
  static constexpr uint32_t kMostCount = 0x7fffffff;

  // For OrderedKey of sums of softmaxes: from 2^-57 to 2^7.
  static KeyMap OfShares() { return {.lowest = kZero + ((127 - 57) << 5)}; }
  // For OrderedKey of numbers of either sign: from 2^-10 to 2^22.
  static KeyMap OfNumbers() { return {.lowest = (127 - 10) << 5, .signs = true}; }
  // For kMostCount - x, with whole numbers x in [0, most].
  static KeyMap OfCounts(int32_t most) {
    KeyMap map = {.shift = 0};
    while ((most >> map.shift) + 2 > kCoarseBins) ++map.shift;
    map.lowest = static_cast<int32_t>((kMostCount - static_cast<uint32_t>(most)) >> map.shift);
    return map;
  }

  __host__ __device__ int32_t BinOf(uint32_t key) const {
    const auto place = static_cast<int32_t>(key >> shift);
    const auto within = [](int32_t x, int32_t end) { return x < 0 ? 0 : x < end ? x : end - 1; };
    if (!signs) return within(place - lowest, kCoarseBins);
    if (place >= kZero) return kHalf + within(place - kZero - lowest, kHalf);
    return kHalf - 1 - within(kZero - 1 - place - lowest, kHalf);
  }
  __host__ __device__ bool AtEnd(int32_t bin) const {
    return bin == 0 || bin == kCoarseBins - 1 || (signs && (bin == kHalf || bin == kHalf - 1));
  }
  // The least key that may be in the bin.
  __host__ __device__ uint32_t Least(int32_t bin) const {
    if (bin == 0) return kLeastKey;
    int32_t place = 0;
    if (!signs) {
      place = lowest + bin;
    } else if (bin >= kHalf) {
      place = bin == kHalf ? kZero : kZero + lowest + bin - kHalf;
    } else {
      place = kZero - 1 - lowest - (kHalf - 1 - bin);
    }
    return static_cast<uint32_t>(place) << shift;
  }
};

// The selection of a pair.
struct alignas(16) ChainPair {
  int32_t items;  // of its candidates; 0: it selects nothing, or all candidates
  int32_t begin, end, k;
  uint32_t key;  // the selected keys: Threshold
  int32_t ties;
  int32_t counted;  // items that have been counted
  int32_t fewest;   // Selection::fewest
};
static_assert(sizeof(ChainPair) == 4 * kChainPairWords);

__host__ __device__ inline int32_t OriginOf(int32_t begin) {
  return begin / kSelectBlock * kSelectBlock;
}
__host__ __device__ inline int32_t ItemsOf(int32_t begin, int32_t end) {
  return (end - OriginOf(begin) + kChainItem - 1) / kChainItem;
}

struct Chain {
  uint32_t* scratch = nullptr;
  int32_t pairs = 0;
  ChainLayout layout;
  KeyMap map;

  __device__ uint32_t* Of(int32_t pair, int64_t offset) const {
    return scratch + layout.first + pair * layout.pair + offset;
  }
  __device__ ChainPair* PairOf(int32_t pair) const {
    return reinterpret_cast<ChainPair*>(scratch) + pair;
  }
};

// Blocks of the kernels over items: three per SM hide the memory's latency, and leave room for
// others.
inline unsigned ChainBlocks(const CudaStream& stream, const StepView& step,
                            const LiteCacheShape& shape, int an_sm = 3) {
  const int64_t items = ChainItems(step.max_context) * step.capacity * shape.kv_heads;
  return static_cast<unsigned>(
      std::clamp<int64_t>(items, 1, std::min(an_sm * stream.sm_count(), kMaxChainBlocks)));
}

inline Chain MakeChain(const StepView& step, const LiteCacheShape& shape, const KeyMap& map,
                       void* scratch) {
  const int32_t pairs = step.capacity * shape.kv_heads;
  return {static_cast<uint32_t*>(scratch), pairs,
          ChainLayoutOf(pairs, shape.group, step.max_context), map};
}

// The first kernel's work for its pair, by all threads of `parts` blocks; returns false if nothing
// else needs to be done for it.
__device__ inline bool BeginPair(const StepView& step, const LiteCacheShape& shape,
                                 const LiteCacheLayer& layer, const SelectSource& source,
                                 const Chain& chain, int32_t pair, int32_t part, int32_t parts,
                                 SelectTarget* target) {
  const bool leads = part == 0 && threadIdx.x == 0;
  const auto threads = static_cast<int32_t>(blockDim.x);
  const int32_t first = part * threads + static_cast<int32_t>(threadIdx.x);
  ChainPair* state = chain.PairOf(pair);
  if (!FindTarget(step, shape, layer, source, pair, target)) {
    if (leads) {
      layer.selected_count[pair] = 0;
      state->items = 0;
    }
    return false;
  }
  const int32_t begin = target->begin, candidates = target->end - begin;
  const bool all = candidates <= target->k;
  if (leads) {
    layer.selected_count[pair] = all ? candidates : target->k;
    *state = {.items = all ? 0 : ItemsOf(begin, target->end),
              .begin = begin,
              .end = target->end,
              .k = target->k,
              .fewest = target->fewest};
    if (target->list < 0) {  // offloaded heads are counted when they take their slots
      atomicAdd(&layer.counters[target->head].rows_selected,
                static_cast<unsigned long long>(target->k));
    }
  }
  if (all) {
    int32_t* selected = layer.selected + int64_t{pair} * shape.max_rows;
    for (int32_t i = first; i < candidates; i += parts * threads) selected[i] = begin + i;
    return false;
  }
  uint32_t* coarse = chain.Of(pair, chain.layout.coarse);
  for (int32_t i = first; i < kCoarseBins + kFineBins; i += parts * threads) coarse[i] = 0;
  return true;
}

// Some items of one pair: all of a block's, or the first of them.
struct ChainWork {
  int32_t pair = 0;
  int32_t first = 0, last = 0;  // items
  int32_t left = 0;             // items of the block from `first` on

  // Advances to the next pair.
  __device__ bool Next(const Chain& chain) {
    left -= last - first;
    if (left <= 0) return false;
    int32_t items;
    do {
      items = __ldcg(&chain.PairOf(++pair)->items);
    } while (items == 0);
    first = 0;
    last = min(items, left);
    return true;
  }
};

struct WorkShared {
  int32_t warp_sums[kChainWarps];
  int32_t pair, first, last;
};

// Computes the block's share of all items, as even as possible; items_of(pair). Called by all
// threads. Returns false if there is none.
template <class ItemsOfPair>
__device__ bool FindWork(const Chain& chain, WorkShared& shared, const ItemsOfPair& items_of,
                         ChainWork* work) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t a_thread = (chain.pairs + kChainThreads - 1) / kChainThreads;
  const int32_t begin = min(chain.pairs, thread * a_thread);
  const int32_t end = min(chain.pairs, begin + a_thread);
  int32_t own = 0, total;
  for (int32_t pair = begin; pair < end; ++pair) own += items_of(pair);
  int32_t before = SumBefore<kChainWarps>(own, shared.warp_sums, &total);
  const auto share = [&](int64_t block) {
    return static_cast<int32_t>(total * block / static_cast<int64_t>(gridDim.x));
  };
  const int32_t first = share(blockIdx.x), left = share(int64_t{blockIdx.x} + 1) - first;
  if (left == 0) return false;
  if (before <= first && first < before + own) {
    for (int32_t pair = begin; pair < end; ++pair) {
      const int32_t items = a_thread == 1 ? own : items_of(pair);
      if (first < before + items) {
        shared.pair = pair;
        shared.first = first - before;
        shared.last = min(items, first - before + left);
        break;
      }
      before += items;
    }
  }
  __syncthreads();
  *work = {shared.pair, shared.first, shared.last, left};
  return true;
}

// The share that a block of one kernel over items has computed, for the blocks of the next kernels.
struct alignas(16) ChainShare {
  int32_t pair, first, last, left;
  int32_t items, begin, end, k;  // of the pair
};
static_assert(sizeof(ChainShare) == 4 * kChainShareWords);

__device__ __forceinline__ ChainShare* ShareOf(const Chain& chain) {
  return reinterpret_cast<ChainShare*>(chain.scratch + chain.layout.shares) + blockIdx.x;
}
// Reads the share of the block with the same number in the previous kernel. Returns false if it had
// none.
__device__ __forceinline__ bool TakeShare(const Chain& chain, ChainWork* work, int4* pair) {
  const auto* share = reinterpret_cast<const int4*>(ShareOf(chain));
  const int4 items = __ldcg(share);
  *pair = __ldcg(share + 1);
  *work = {items.x, items.y, items.z, items.w};
  return work->left > 0;
}

// Finds the work from the results of the chain's first kernel.
__device__ __forceinline__ bool FindWork(const Chain& chain, WorkShared& shared, ChainWork* work) {
  return FindWork(
      chain, shared, [&](int32_t pair) { return __ldcg(&chain.PairOf(pair)->items); }, work);
}

// A block's part of a pair's coarse histogram, two bins per word.
struct CoarseBins {
  uint32_t pairs[kCoarseBins / 2];

  // Items that a block may add before it must Flush: then a bin's half of a word may be full.
  static constexpr int kItems = 65535 / kChainItem;

  __device__ void Clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kCoarseBins / 2; i += kChainThreads) {
      pairs[i] = 0;
    }
  }
  __device__ void Add(int32_t bin) { atomicAdd(&pairs[bin / 2], 1u << (16 * (bin & 1))); }
  // Adds the bins to the pair's histogram; called by all threads of the block, which it
  // synchronizes.
  __device__ void Flush(uint32_t* coarse) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kCoarseBins / 2; i += kChainThreads) {
      const uint32_t two = pairs[i];
      pairs[i] = 0;
      if ((two & 0xffff) != 0) atomicAdd(coarse + 2 * i, two & 0xffff);
      if (two >> 16 != 0) atomicAdd(coarse + 2 * i + 1, two >> 16);
    }
    __syncthreads();
  }
};

// With a budget by need: lowers the pairs' k to the number of keys in the bins from NeededScore()'s
// on. For chains whose keys are OrderedKey of sums of softmaxes. Launched between the scores and
// TakeBest; without such a budget it launches nothing.
void LimitToNeed(CudaStream& stream, const LiteCacheShape& shape, const LiteCacheLayer& layer,
                 const Chain& chain);

// Launches the kernels that follow the scores. blocks: of the kernels over items.
void TakeBest(CudaStream& stream, unsigned blocks, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, const Chain& chain);

}  // namespace litecache::ops::cuda
