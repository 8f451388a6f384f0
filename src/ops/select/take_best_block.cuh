// The steps of take_best_cuda.cu in one block of a pair's cluster.
#pragma once

#include "ops/select/find_bin.cuh"
#include "ops/select/top_k_chain.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kTakeThreads = 256;
constexpr int kTakeWarps = kTakeThreads / 32;
constexpr int kRoundKeys = 32 * kTokensAThread;  // of a warp
constexpr int kAtOnce = 8;                       // rounds with loads in flight
constexpr int kFineBits = 9;
constexpr int kFineAThread = kFineBins / kTakeThreads;
constexpr int kCoarseAThread = kCoarseBins / kTakeThreads;
static_assert(1 << kFineBits == kFineBins && kFineAThread == 2 && kCoarseAThread == 8);
// A warp has as many rounds as the block has items.
static_assert(kTakeWarps * kRoundKeys == kChainItem);
// Bytes of a block's bitmap for one item.
constexpr size_t kItemBytes = kChainItem / 8;
constexpr size_t kMaxBitmapBytes = size_t{96} << 10;

struct alignas(16) TakeShared {
  uint32_t fine[2][kFineBins];  // two: others may still read one while the next one is made
  int32_t sums[kTakeWarps];
  int32_t bin, left, inside;
  int32_t of_warp[kTakeWarps];
  int32_t taken, equal;  // in this block
  int32_t listed;        // number of keys in this block's list, counting those that did not fit
};

// Keys in the bin of the k-th largest, as many as there is room for, and their places.
struct TakeList {
  uint32_t* keys;
  int32_t* places;
  int32_t room;
};

// A key's place in the bitmap: bit `lane` of word 4 * (warp * rounds + round) + i, for the i-th key
// of a lane. Returns whether place a is that of an earlier token than b.
__device__ __forceinline__ bool IsBefore(int32_t a, int32_t b) {
  const auto order = [](int32_t place) {
    return place / 128 * 128 + place % 32 * 4 + place / 32 % 4;
  };
  return order(a) < order(b);
}

// The sum over the preceding threads.
__device__ __forceinline__ int32_t TakeExclusiveSum(int32_t x, int32_t* sums) {
  int32_t of_warp;
  const int32_t in_warp = WarpExclusiveSum(x, &of_warp);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) sums[warp] = of_warp;
  __syncthreads();
  const bool before = lane < warp;  // there are fewer warps than lanes
  return __reduce_add_sync(kFullMask, before ? sums[lane] : 0) + in_warp;
}

template <int kBins>
__device__ void FindBinOfTeam(const uint32_t (&counts)[kBins], int32_t first, int32_t left,
                              TakeShared& shared) {
  const auto sum_before = [&](int32_t of_thread) {
    return TakeExclusiveSum(of_thread, shared.sums);
  };
  FindBin(counts, first, left, sum_before, shared);
}

// The sum of `*own` over the blocks before this one, and over all; called by all lanes of a warp,
// after a Sync.
struct OfTeam {
  int32_t before, all, most;
};
__device__ __forceinline__ OfTeam SumTeam(const ClusterTeam& team, const int32_t* own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t of_block = lane < team.size ? *team.Of(own, lane) : 0;
  return {__reduce_add_sync(kFullMask, lane < team.rank ? of_block : 0),
          __reduce_add_sync(kFullMask, of_block), __reduce_max_sync(kFullMask, of_block)};
}

// The keys among which the k-th largest is still searched: it is the left-th largest of `inside`
// keys in [least, most].
struct KeyRange {
  uint32_t least, most;
  int32_t left, inside;
};

// A thread's view of its block's range of a pair's keys, and of the keys selected from it.
struct TakeBlock {
  const ClusterTeam& team;
  TakeShared& shared;
  const uint32_t* keys;
  uint4* bitmap;  // [warps][rounds]: the words of a round
  TakeList list;
  int32_t rounds;  // of each warp
  int32_t first;   // this lane's first key in the first round
  int32_t thread, lane, warp;

  __device__ __forceinline__ uint4* OwnWords() const { return bitmap + warp * rounds; }

  // Calls each(the lane's four keys, round), by whole warps.
  template <class Each>
  __device__ __forceinline__ void ForRounds(const Each& each) const {
    for (int32_t base = 0; base < rounds; base += kAtOnce) {
      uint4 four[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        four[i] = {0, 0, 0, 0};
        if (base + i < rounds) {
          four[i] = __ldcg(reinterpret_cast<const uint4*>(keys + first + (base + i) * kRoundKeys));
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + i < rounds) {
          const uint32_t key[kTokensAThread] = {four[i].x, four[i].y, four[i].z, four[i].w};
          each(key, base + i);
        }
      }
    }
  }

  // Sets the bitmap's words of a round: which of its keys are selected.
  __device__ __forceinline__ void Mark(int32_t round, const bool (&taken)[kTokensAThread]) const {
    const uint4 words = {__ballot_sync(kFullMask, taken[0]), __ballot_sync(kFullMask, taken[1]),
                         __ballot_sync(kFullMask, taken[2]), __ballot_sync(kFullMask, taken[3])};
    if (lane == 0) OwnWords()[round] = words;
  }

  // Calls each(key) for the listed keys, or for every key if the list has overflowed.
  template <class Each>
  __device__ __forceinline__ void ForKeys(bool is_listed, int32_t listed, const Each& each) const {
    if (is_listed) {
      for (int32_t i = thread; i < listed; i += kTakeThreads) each(list.keys[i]);
    } else {
      ForRounds([&](const uint32_t(&key)[kTokensAThread], int32_t) {
#pragma unroll
        for (int i = 0; i < kTokensAThread; ++i) each(key[i]);
      });
    }
  }

  // The coarse bin of the k-th largest key, from the chain's counts for the pair.
  __device__ __forceinline__ KeyRange FindCoarse(const Chain& chain, int32_t pair,
                                                 int32_t k) const {
    const int first_bin = kCoarseBins - kCoarseAThread * (thread + 1);
    const auto* coarse =
        reinterpret_cast<const uint4*>(chain.Of(pair, chain.layout.coarse) + first_bin);
    const uint4 low = __ldcg(coarse), high = __ldcg(coarse + 1);
    const uint32_t of_bins[kCoarseAThread] = {low.x,  low.y,  low.z,  low.w,
                                              high.x, high.y, high.z, high.w};
    FindBinOfTeam(of_bins, first_bin, k, shared);
    const int32_t bin = shared.bin;
    return {chain.map.Least(bin), bin + 1 < kCoarseBins ? chain.map.Least(bin + 1) - 1 : UINT32_MAX,
            shared.left, shared.inside};
  }

  // Reads all keys: selects those above the range, and lists those in it unless all of them are
  // selected.
  __device__ __forceinline__ void TakeAboveRange(const KeyRange& range) const {
    const bool whole_bin = range.left == range.inside;
    ForRounds([&](const uint32_t(&key)[kTokensAThread], int32_t round) {
      bool taken[kTokensAThread];
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        const bool in_bin = key[i] >= range.least && key[i] <= range.most;
        taken[i] = key[i] > range.most || (whole_bin && in_bin);
        if (in_bin && !whole_bin) {
          const int32_t at = atomicAdd(&shared.listed, 1);
          if (at < list.room) {
            list.keys[at] = key[i];
            list.places[at] = 32 * (4 * (warp * rounds + round) + i) + lane;
          }
        }
      }
      Mark(round, taken);
    });
  }

  // Divides the range into fine bins repeatedly, until all keys inside are selected or one key
  // value is left.
  __device__ __forceinline__ void Narrow(bool is_listed, int32_t listed, KeyRange* range) const {
    for (int pass = 0; range->least < range->most && range->left < range->inside; ++pass) {
      const uint32_t least = range->least, most = range->most;
      const int32_t shift = max(32 - __clz(static_cast<int>(most - least)) - kFineBits, 0);
      uint32_t* fine = shared.fine[pass & 1];
      ForKeys(is_listed, listed, [&](uint32_t key) {
        if (key - least <= most - least) atomicAdd(&fine[(key - least) >> shift], 1u);
      });
      team.Sync();
      const int32_t digit = kFineBins - kFineAThread * (thread + 1);
      uint32_t of_digits[kFineAThread] = {};
#pragma unroll
      for (int block = 0; block < kMaxTeam; ++block) {  // all loads at once
        if (block < team.size) {
          const auto* two = reinterpret_cast<const uint2*>(team.Of(fine, block) + digit);
          of_digits[0] += two->x;
          of_digits[1] += two->y;
        }
      }
      // The other histogram was read before the barrier.
      for (int32_t i = thread; i < kFineBins; i += kTakeThreads) {
        shared.fine[(pass & 1) ^ 1][i] = 0;
      }
      FindBinOfTeam(of_digits, digit, range->left, shared);
      range->least = least + (static_cast<uint32_t>(shared.bin) << shift);
      range->most = min(most, range->least + ((1u << shift) - 1));
      range->left = shared.left;
      range->inside = shared.inside;
    }
  }

  // How many keys equal to range.least this block may select; earlier blocks select theirs first.
  // Writes each warp's number of them to shared.of_warp, unless all are selected.
  __device__ __forceinline__ int32_t CountTies(bool is_listed, int32_t listed,
                                               const KeyRange& range) const {
    if (range.left >= range.inside) return INT32_MAX;
    int32_t equal = 0;
    ForKeys(is_listed, listed, [&](uint32_t key) { equal += key == range.least ? 1 : 0; });
    equal = __reduce_add_sync(kFullMask, equal);
    if (lane == 0) shared.of_warp[warp] = equal;
    __syncthreads();
    if (thread == 0) {
      equal = 0;
      for (int w = 0; w < kTakeWarps; ++w) equal += shared.of_warp[w];
      shared.equal = equal;
    }
    team.Sync();
    return range.left - SumTeam(team, &shared.equal).before;
  }

  // Selects the listed keys above `least`, and the keys equal to it: all, or if not all fit
  // (has_ties) the first `ties` ones.
  __device__ __forceinline__ void TakeListed(int32_t listed, uint32_t least, bool has_ties,
                                             int32_t ties) const {
    auto* words = reinterpret_cast<uint32_t*>(bitmap);
    for (int32_t i = thread; i < listed; i += kTakeThreads) {
      const int32_t place = list.places[i];
      bool taken = list.keys[i] > least || (!has_ties && list.keys[i] == least);
      if (has_ties && list.keys[i] == least && ties > 0) {
        int32_t before = 0;
        for (int32_t j = 0; ties < shared.equal && j < listed; ++j) {
          before += list.keys[j] == least && IsBefore(list.places[j], place) ? 1 : 0;
        }
        taken = before < ties;
      }
      if (taken) atomicOr(words + place / 32, 1u << place % 32);
    }
  }

  // The same over all keys, which are read once more.
  __device__ __forceinline__ void TakeAll(uint32_t least, bool has_ties, int32_t ties) const {
    // A warp has a range of tokens: those of the preceding warps come first.
    int32_t before = 0;
    for (int w = 0; has_ties && w < warp; ++w) before += shared.of_warp[w];
    ForRounds([&](const uint32_t(&key)[kTokensAThread], int32_t round) {
      int32_t equal = 0, all;
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) equal += key[i] == least ? 1 : 0;
      int32_t rank = before + WarpExclusiveSum(equal, &all);
      before += all;
      bool taken[kTokensAThread];
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        taken[i] = key[i] > least || (key[i] == least && rank < ties);
        rank += key[i] == least ? 1 : 0;
      }
      Mark(round, taken);
    });
  }

  // The number of keys that the preceding blocks and warps have selected.
  __device__ __forceinline__ int32_t CountTaken() const {
    int32_t of_warp = 0;
    for (int32_t round = lane; round < rounds; round += 32) {
      const uint4 words = OwnWords()[round];
      of_warp += __popc(words.x) + __popc(words.y) + __popc(words.z) + __popc(words.w);
    }
    of_warp = __reduce_add_sync(kFullMask, of_warp);
    if (lane == 0) shared.of_warp[warp] = of_warp;
    __syncthreads();
    if (thread == 0) {
      int32_t taken = 0;
      for (int w = 0; w < kTakeWarps; ++w) taken += shared.of_warp[w];
      shared.taken = taken;
    }
    team.Sync();
    int32_t before = SumTeam(team, &shared.taken).before;
    for (int w = 0; w < warp; ++w) before += shared.of_warp[w];
    return before;
  }

  // Writes the selected keys' tokens to next[], ascending; token: that of the lane's first key.
  __device__ __forceinline__ void Write(int32_t token, int32_t* next) const {
    const uint32_t lower = (1u << lane) - 1;
    for (int32_t round = 0; round < rounds; ++round) {
      const uint4 four = OwnWords()[round];
      const uint32_t words[kTokensAThread] = {four.x, four.y, four.z, four.w};
      int32_t at = 0, all = 0;
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        at += __popc(words[i] & lower);
        all += __popc(words[i]);
      }
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        if ((words[i] >> lane & 1) != 0) next[at++] = token + round * kRoundKeys + i;
      }
      next += all;
    }
  }
};

}  // namespace
}  // namespace litecache::ops::cuda
