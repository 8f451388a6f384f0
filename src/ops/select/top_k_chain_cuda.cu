#include "ops/select/find_bin.cuh"
#include "ops/select/need.h"
#include "ops/select/take_best_cuda.h"
#include "ops/select/top_k_chain.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kCoarseAThread = kCoarseBins / kChainThreads;
constexpr int kFineAThread = kFineBins / kChainThreads;
constexpr int kFineBits = 9;
constexpr int kNear = 256;          // keys next to the threshold that fit into shared memory
constexpr int kSharedItems = 1024;  // a million tokens
static_assert(1 << kFineBits == kFineBins && kCoarseAThread == 8 && kFineAThread == 2);

struct CountShared {
  WorkShared work;
  int32_t warp_sums[2][kChainWarps];
  int32_t bin, left, inside;
  bool last;
  uint32_t fine[kFineBins];  // zeros between uses
  // Used by a pair's last block.
  int32_t near;
  uint32_t near_key[kNear];
  int32_t near_item[kNear];
  uint32_t places[kSharedItems];
};

template <int kBins>
__device__ void FindBinOfBlock(const uint32_t (&counts)[kBins], int32_t first, int32_t left,
                               CountShared& shared) {
  const auto sum_before = [&](int32_t of_thread) {
    int32_t total;
    __syncthreads();
    return SumBefore<kChainWarps>(of_thread, shared.warp_sums[0], &total);
  };
  FindBin(counts, first, left, sum_before, shared);
}

// What is known of the k-th largest key: it is the left-th of `inside` keys that begin with
// `prefix`; its last `bits` bits are unknown.
struct Narrowed {
  uint32_t prefix;
  int32_t bits, left, inside;

  // Whether all keys with this prefix are selected, or no bits are unknown.
  __device__ bool Known() const { return bits == 0 || left == inside; }
  __device__ int32_t shift() const { return max(bits - kFineBits, 0); }
  __device__ int32_t Digit(uint32_t key) const {
    return static_cast<int32_t>(key >> shift() & (kFineBins - 1));
  }
  // Narrows by counts of the next digit of those keys, two per thread.
  __device__ void Narrow(const uint32_t (&counts)[kFineAThread], CountShared& shared) {
    FindBinOfBlock(counts, kFineBins - kFineAThread * (static_cast<int>(threadIdx.x) + 1), left,
                   shared);
    prefix |= static_cast<uint32_t>(shared.bin) << shift();
    left = shared.left;
    inside = shared.inside;
    bits = shift();
  }
  // Narrows by shared.fine, and clears it.
  __device__ void Narrow(CountShared& shared) {
    const int first = kFineBins - kFineAThread * (static_cast<int>(threadIdx.x) + 1);
    __syncthreads();
    const uint32_t counts[kFineAThread] = {shared.fine[first], shared.fine[first + 1]};
    shared.fine[first] = shared.fine[first + 1] = 0;
    Narrow(counts, shared);
  }
};

// Calls each(item, whether the lane has a key, key) for the listed keys of a warp's items, 32 at a
// time, and done(item, counts of the item) after each item. A warp has items 8 i + its index.
template <class Each, class Done>
__device__ void ForListed(const uint32_t* counts, const uint32_t* listed, int32_t items,
                          const Each& each, const Done& done) {
  constexpr int kAtOnce = 8;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int32_t base = 0; base < items; base += 32 * kChainWarps) {
    const int32_t own = base + lane * kChainWarps + warp;
    const uint32_t own_counts = own < items ? __ldcg(counts + own) : 0;
    for (int u = 0; u < 32 && base + u * kChainWarps + warp < items; u += kAtOnce) {
      uint32_t of_item[kAtOnce], key[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        of_item[i] = __shfl_sync(kFullMask, own_counts, u + i);
        const int64_t item = base + (u + i) * kChainWarps + warp;
        key[i] = lane < static_cast<int32_t>(of_item[i] >> 16)
                     ? __ldcg(listed + item * kChainItem + lane)
                     : 0;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t item = base + (u + i) * kChainWarps + warp;
        if (item < items) {
          const auto count = static_cast<int32_t>(of_item[i] >> 16);
          each(item, lane < count, key[i]);
          for (int32_t j = 32; j < count; j += 32) {
            const bool exists = j + lane < count;
            each(item, exists, exists ? __ldcg(listed + int64_t{item} * kChainItem + j + lane) : 0);
          }
          done(item, of_item[i]);
        }
      }
    }
  }
}

// By the last block of a pair: finds the exact threshold, and each item's place in the result.
// least: the least key that may be in the coarse bin.
__device__ void FindPlaces(const Chain& chain, int32_t pair, Narrowed found, uint32_t least,
                           int32_t items, CountShared& shared) {
  ChainPair* state = chain.PairOf(pair);
  const uint32_t* counts = chain.Of(pair, chain.layout.counts);
  const uint32_t* listed = chain.Of(pair, chain.layout.listed);
  // For each item: the number of keys above the threshold; in the upper 16 bits, of keys equal to
  // it.
  uint32_t* places = items <= kSharedItems ? shared.places : chain.Of(pair, chain.layout.places);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if (thread == 0) shared.near = 0;
  if (!found.Known()) {  // counted by all threads
    const auto* fine = reinterpret_cast<const uint2*>(chain.Of(pair, chain.layout.fine));
    const uint2 two = __ldcg(fine + (kFineBins / kFineAThread - 1 - thread));
    const uint32_t own[kFineAThread] = {two.x, two.y};
    found.Narrow(own, shared);
  }
  const auto key = [&] { return max(found.prefix, least); };
  uint32_t greater = 0, equal = 0;
  bool placed = false;
  if (!found.Known()) {
    // Usually few keys are left: they are kept while the others are counted.
    __syncthreads();
    ForListed(
        counts, listed, items,
        [&](int32_t item, bool exists, uint32_t candidate) {
          const uint32_t begins = candidate >> found.bits, as = found.prefix >> found.bits;
          greater += __popc(__ballot_sync(kFullMask, exists && begins > as));
          if (exists && begins == as) {
            atomicAdd(&shared.fine[found.Digit(candidate)], 1u);
            const int32_t i = atomicAdd(&shared.near, 1);
            if (i < kNear) {
              shared.near_key[i] = candidate;
              shared.near_item[i] = item;
            }
          }
        },
        [&](int32_t item, uint32_t of_item) {
          if (lane == 0) places[item] = (of_item & 0xffff) + greater;
          greater = 0;
        });
    found.Narrow(shared);
    const int32_t near = shared.near;
    placed = found.Known() && near <= kNear;
    for (int32_t i = thread; placed && i < near; i += kChainThreads) {
      const uint32_t candidate = shared.near_key[i];
      if (candidate >= key()) {
        atomicAdd(places + shared.near_item[i], candidate > key() ? 1u : 1u << 16);
      }
    }
  }
  while (!found.Known()) {
    ForListed(
        counts, listed, items,
        [&](int32_t, bool exists, uint32_t candidate) {
          if (exists && candidate >> found.bits == found.prefix >> found.bits) {
            atomicAdd(&shared.fine[found.Digit(candidate)], 1u);
          }
        },
        [](int32_t, uint32_t) {});
    found.Narrow(shared);
  }
  if (!placed) {
    ForListed(
        counts, listed, items,
        [&](int32_t, bool exists, uint32_t candidate) {
          greater += __popc(__ballot_sync(kFullMask, exists && candidate > key()));
          equal += __popc(__ballot_sync(kFullMask, exists && candidate == key()));
        },
        [&](int32_t item, uint32_t of_item) {
          if (lane == 0) places[item] = (of_item & 0xffff) + greater + (equal << 16);
          greater = equal = 0;
        });
  }
  __syncthreads();
  auto* offsets = reinterpret_cast<int2*>(chain.Of(pair, chain.layout.offsets));
  const int32_t a_thread = (items + kChainThreads - 1) / kChainThreads;
  const int32_t begin = min(items, thread * a_thread), end = min(items, begin + a_thread);
  int32_t above = 0, ties = 0, total;
  for (int32_t i = begin; i < end; ++i) {
    above += static_cast<int32_t>(places[i] & 0xffff);
    ties += static_cast<int32_t>(places[i] >> 16);
  }
  above = SumBefore<kChainWarps>(above, shared.warp_sums[0], &total);
  ties = SumBefore<kChainWarps>(ties, shared.warp_sums[1], &total);
  for (int32_t i = begin; i < end; ++i) {
    offsets[i] = {above, ties};
    above += static_cast<int32_t>(places[i] & 0xffff);
    ties += static_cast<int32_t>(places[i] >> 16);
  }
  if (thread == 0) {
    state->key = key();
    // Everything with this prefix is selected: the remaining bits do not matter.
    state->ties = found.left == found.inside ? INT32_MAX : found.left;
  }
}

// Counts the block's items of a pair.
__device__ void CountItems(const Chain& chain, const ChainWork& work, CountShared& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t pair = work.pair;
  const int4 state = __ldcg(reinterpret_cast<const int4*>(chain.PairOf(pair)));
  const int32_t items = state.x, begin = state.y, end = state.z, origin = OriginOf(begin);
  const uint32_t* keys = chain.Of(pair, chain.layout.keys);
  uint32_t* listed = chain.Of(pair, chain.layout.listed);
  const auto load = [&](int32_t item) {
    return __ldcg(reinterpret_cast<const uint4*>(keys + int64_t{item} * kChainItem) + thread);
  };
  uint4 next = load(work.first);

  const int32_t first_bin = kCoarseBins - kCoarseAThread * (thread + 1);
  const auto* coarse =
      reinterpret_cast<const uint4*>(chain.Of(pair, chain.layout.coarse) + first_bin);
  const uint4 low = __ldcg(coarse), high = __ldcg(coarse + 1);
  const uint32_t of_bins[kCoarseAThread] = {low.x,  low.y,  low.z,  low.w,
                                            high.x, high.y, high.z, high.w};
  FindBinOfBlock(of_bins, first_bin, state.w, shared);
  const int32_t bin = shared.bin;
  const uint32_t least = chain.map.Least(bin);
  const bool at_end = chain.map.AtEnd(bin);
  const Narrowed found = {at_end ? 0 : least, at_end ? 32 : chain.map.shift, shared.left,
                          shared.inside};

  int turn = 0;
  for (int32_t item = work.first; item < work.last; ++item) {
    const uint32_t key[] = {next.x, next.y, next.z, next.w};
    if (item + 1 < work.last) next = load(item + 1);
    const int32_t token = origin + item * kChainItem + kTokensAThread * thread;
    int32_t counted = 0;  // above the bin; in the upper 16 bits: in it
    unsigned is_listed = 0;
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      const int32_t of_key = chain.map.BinOf(key[i]);
      const bool exists = token + i >= begin && token + i < end;
      if (exists && of_key > bin) ++counted;
      if (exists && of_key == bin) {
        counted += 1 << 16;
        is_listed |= 1u << i;
      }
    }
    int32_t total;
    const int32_t before = SumBefore<kChainWarps>(counted, shared.warp_sums[turn], &total);
    turn ^= 1;  // a sum's words are reused only when all threads have read the next one's
    uint32_t* to = listed + int64_t{item} * kChainItem + (before >> 16);
#pragma unroll
    for (int i = 0; i < kTokensAThread; ++i) {
      if ((is_listed >> i & 1) != 0) {
        *to++ = key[i];
        if (!found.Known()) atomicAdd(&shared.fine[found.Digit(key[i])], 1u);
      }
    }
    if (thread == 0) chain.Of(pair, chain.layout.counts)[item] = static_cast<uint32_t>(total);
  }
  __syncthreads();
  uint32_t* fine = chain.Of(pair, chain.layout.fine);
  for (int i = thread; i < kFineBins; i += kChainThreads) {
    if (shared.fine[i] != 0) {
      atomicAdd(fine + i, shared.fine[i]);
      shared.fine[i] = 0;
    }
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    const int32_t own = work.last - work.first;
    shared.last = atomicAdd(&chain.PairOf(pair)->counted, own) + own == items;
  }
  __syncthreads();
  if (shared.last) {
    __threadfence();
    FindPlaces(chain, pair, found, least, items, shared);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kChainThreads, 4)
    CountKernel(const __grid_constant__ Chain chain) {
  __shared__ CountShared shared;
  for (int i = static_cast<int>(threadIdx.x); i < kFineBins; i += kChainThreads) {
    shared.fine[i] = 0;
  }
  WaitForKernelBefore();
  LetNextKernelStart();
  ChainWork work;
  if (!FindWork(chain, shared.work, &work)) return;
  do {
    CountItems(chain, work, shared);
  } while (work.Next(chain));
}

__global__ void __launch_bounds__(kChainThreads, 4)
    WriteKernel(const __grid_constant__ Chain chain, int32_t* const selected_of_all,
                const int32_t max_rows) {
  __shared__ WorkShared shared;
  __shared__ int32_t warp_sums[2][kChainWarps];
  WaitForKernelBefore();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  ChainWork work;
  if (!FindWork(chain, shared, &work)) return;
  int turn = 0;
  do {
    const auto* state = reinterpret_cast<const int4*>(chain.PairOf(work.pair));
    const int4 range = __ldcg(state), taken = __ldcg(state + 1);
    const int32_t begin = range.y, end = range.z, origin = OriginOf(begin);
    const auto threshold = static_cast<uint32_t>(taken.x);
    const int32_t ties = taken.y;
    const uint32_t* keys = chain.Of(work.pair, chain.layout.keys);
    const auto* offsets = reinterpret_cast<const int2*>(chain.Of(work.pair, chain.layout.offsets));
    int32_t* selected = selected_of_all + int64_t{work.pair} * max_rows;
    for (int32_t item = work.first; item < work.last; ++item) {
      const uint4 four =
          __ldcg(reinterpret_cast<const uint4*>(keys + int64_t{item} * kChainItem) + thread);
      const int2 offset = __ldcg(offsets + item);
      const uint32_t key[] = {four.x, four.y, four.z, four.w};
      const int32_t token = origin + item * kChainItem + kTokensAThread * thread;
      int32_t found = 0;  // above; in the upper 16 bits: equal
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        if (token + i >= begin && token + i < end) {
          found += key[i] > threshold ? 1 : key[i] == threshold ? 1 << 16 : 0;
        }
      }
      int32_t total;
      const int32_t before = SumBefore<kChainWarps>(found, warp_sums[turn], &total);
      turn ^= 1;
      int32_t greater = offset.x + (before & 0xffff), equal = offset.y + (before >> 16);
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        if (token + i >= begin && token + i < end) {
          if (key[i] > threshold) {
            selected[greater++ + min(equal, ties)] = token + i;
          } else if (key[i] == threshold) {
            if (equal < ties) selected[greater + equal] = token + i;
            ++equal;
          }
        }
      }
    }
  } while (work.Next(chain));
}

// One block per pair. A needed score is the least key of its bin, so that whole bins count.
static_assert(kIgnoredScoreBits == 18, "KeyMap::OfShares() divides keys by their bits from 18 on");
__global__ void __launch_bounds__(kChainThreads)
    LimitKernel(const __grid_constant__ LiteCacheShape shape,
                const __grid_constant__ LiteCacheLayer layer, const __grid_constant__ Chain chain) {
  __shared__ int32_t warp_sums[kChainWarps];
  WaitForKernelBefore();
  LetNextKernelStart();
  const int32_t pair = blockIdx.x;
  ChainPair* state = chain.PairOf(pair);
  const int4 range = __ldcg(reinterpret_cast<const int4*>(state));
  const int32_t items = range.x, begin = range.y, end = range.z, k = range.w;
  if (items == 0) return;
  const uint32_t* coarse = chain.Of(pair, chain.layout.coarse);
  const int32_t first = chain.map.BinOf(ChainKey(NeededScore(shape.group, end - begin)));
  int32_t own = 0, reaching;
  for (int32_t bin = first + static_cast<int32_t>(threadIdx.x); bin < kCoarseBins;
       bin += kChainThreads) {
    own += static_cast<int32_t>(__ldcg(coarse + bin));
  }
  SumBefore<kChainWarps>(own, warp_sums, &reaching);
  if (threadIdx.x != 0) return;
  const int32_t taken = max(state->fewest, min(k, reaching));
  state->k = taken;
  layer.selected_count[pair] = taken;
  const int32_t head = pair % shape.kv_heads;
  if (layer.slots.list_of_head[head] < 0) {  // BeginPair has counted k
    atomicAdd(&layer.counters[head].rows_selected, static_cast<unsigned long long>(taken - k));
  }
}

}  // namespace

void LimitToNeed(CudaStream& stream, const LiteCacheShape& shape, const LiteCacheLayer& layer,
                 const Chain& chain) {
  if (!shape.windows.by_need) return;
  LaunchOverlapping(stream, LimitKernel, static_cast<unsigned>(chain.pairs), kChainThreads, 0,
                    shape, layer, chain);
}

void TakeBest(CudaStream& stream, unsigned blocks, const LiteCacheShape& shape,
              const LiteCacheLayer& layer, const Chain& chain) {
  if (TakeInClusters(stream, shape, layer, chain)) return;
  LaunchOverlapping(stream, CountKernel, blocks, kChainThreads, 0, chain);
  LaunchOverlapping(stream, WriteKernel, blocks, kChainThreads, 0, chain, layer.selected,
                    shape.max_rows);
}

}  // namespace litecache::ops::cuda
