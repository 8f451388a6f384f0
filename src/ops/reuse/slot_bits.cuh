// Bitmaps of a head's positions and slots in global memory, divided into parts whose bits are
// counted: shared by kernels that visit all slots of a head in many small, independent blocks,
// which find room on SMs beside products.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ops/slots/litecache_pair.cuh"

namespace litecache::ops::cuda {

constexpr int kSlotThreads = 256;  // in each block
constexpr int kSlotWarps = kSlotThreads / 32;
constexpr int kPartWords = 64;
constexpr int kPartBits = 32 * kPartWords;
// Parts in a block of the kernels over positions, one per warp.
constexpr int kBlockParts = kSlotWarps;
constexpr int kBlockWords = kBlockParts * kPartWords;

// A pair's scratch: offsets in 32-bit words.
struct SlotBits {
  struct Header {
    int32_t used;
    uint32_t now;
    int32_t next_victim;
    int32_t unused;
  };

  uint32_t* scratch = nullptr;
  int32_t parts = 0;       // of positions, a multiple of kBlockParts
  int32_t slot_parts = 0;  // of slots

  __host__ __device__ int64_t positions() const { return 8; }
  __host__ __device__ int64_t counts() const { return positions() + int64_t{kPartWords} * parts; }
  __host__ __device__ int64_t free() const { return counts() + parts; }
  __host__ __device__ int64_t free_counts() const {
    return free() + int64_t{kPartWords} * slot_parts;
  }
  __host__ __device__ int64_t pair_words() const {
    return (free_counts() + slot_parts + 31) / 32 * 32;
  }

  __device__ uint32_t* Of(int32_t pair, int64_t offset) const {
    return scratch + pair * pair_words() + offset;
  }
  __device__ Header* HeaderOf(int32_t pair) const { return reinterpret_cast<Header*>(Of(pair, 0)); }
};

// The most slots for a head's cached rows.
inline int64_t MostSlots(const LiteCacheShape& shape) {
  return static_cast<int64_t>(std::ceil(shape.max_rows * shape.windows.slots_factor));
}

// slots: MostSlots().
inline SlotBits SlotBitsOf(int64_t max_context, int64_t slots, void* scratch) {
  const auto up = [](int64_t n, int64_t of) { return static_cast<int32_t>((n + of - 1) / of); };
  return {static_cast<uint32_t*>(scratch),
          kBlockParts * up(max_context + 1, int64_t{kPartBits} * kBlockParts),
          up(slots < 1 ? 1 : slots, kPartBits)};
}

#ifdef __CUDACC__
// The number of bits before bit `at`, which may lie behind the last part. befores: from SumParts.
// Called by whole warps, with the same arguments in all lanes.
__device__ __forceinline__ int32_t BitsBefore(const uint32_t* words, const int32_t* befores,
                                              int32_t parts, int32_t at) {
  const int32_t part = at / kPartBits;
  if (part >= parts) return befores[parts];
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  int32_t bits = 0;
#pragma unroll
  for (int32_t w = lane; w < kPartWords; w += 32) {
    const int32_t before = at - 32 * (part * kPartWords + w);  // bits of this word that count
    const uint32_t mask = before >= 32 ? ~0u : before > 0 ? (1u << before) - 1 : 0;
    bits += __popc(__ldcg(words + part * kPartWords + w) & mask);
  }
  return befores[part] + static_cast<int32_t>(__reduce_add_sync(kFullMask, bits));
}

// befores[0 .. parts]: the number of bits in the preceding parts. Called by the whole block;
// returns the total, after a barrier.
__device__ __forceinline__ int32_t SumParts(const uint32_t* counts, int32_t parts,
                                            int32_t* warp_sums, int32_t* befores) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t a_thread = (parts + kSlotThreads - 1) / kSlotThreads;
  const int32_t begin = min(parts, thread * a_thread), end = min(parts, begin + a_thread);
  int32_t own = 0, total;
  for (int32_t p = begin; p < end; ++p) own += static_cast<int32_t>(__ldcg(counts + p));
  int32_t before = SumBefore<kSlotWarps>(own, warp_sums, &total);
  for (int32_t p = begin; p < end; ++p) {
    befores[p] = before;
    before += static_cast<int32_t>(__ldcg(counts + p));
  }
  if (thread == 0) befores[parts] = total;
  __syncthreads();
  return total;
}

// out[rank - first] := index of the bit of each rank in [first, last). befores: from SumParts.
// Called by the whole block; ends without a barrier.
__device__ __forceinline__ void FindRanks(const uint32_t* words, const int32_t* befores,
                                          int32_t parts, int32_t first, int32_t last,
                                          int32_t* out) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  for (int32_t base = 0; base < parts; base += 32 * kSlotWarps) {
    // Neighbouring parts go to different warps.
    const int32_t own = base + lane * kSlotWarps + warp;
    const bool overlaps = own < parts && befores[own] < last && befores[own + 1] > first &&
                          befores[own] < befores[own + 1];
    for (unsigned found = __ballot_sync(kFullMask, overlaps); found != 0; found &= found - 1) {
      const int32_t part = base + (__ffs(static_cast<int>(found)) - 1) * kSlotWarps + warp;
      const int32_t word = part * kPartWords + lane;
      const uint32_t two[2] = {__ldcg(words + word), __ldcg(words + word + 32)};
      int32_t before = befores[part];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int32_t of_warp;
        int32_t rank = before + WarpExclusiveSum(__popc(two[i]), &of_warp);
        before += of_warp;
        for (uint32_t left = two[i]; left != 0; left &= left - 1, ++rank) {
          if (rank >= first && rank < last) {
            out[rank - first] = 32 * (word + 32 * i) + __ffs(static_cast<int>(left)) - 1;
          }
        }
      }
    }
  }
}
#endif

}  // namespace litecache::ops::cuda
