// Where the k-th largest key lies in a histogram that the threads of a block have in registers.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// The bin that holds the left-th largest: thread t has the counts of kBins bins, the first of them
// `first`, and higher threads lower bins. sum_before(of_thread): of the threads before this one, by
// all threads. Into shared: bin, left of it, inside it; there for all threads on return.
template <int kBins, class SumBefore, class Shared>
__device__ __forceinline__ void FindBin(const uint32_t (&counts)[kBins], int32_t first,
                                        int32_t left, const SumBefore& sum_before, Shared& shared) {
  int32_t of_thread = 0;
#pragma unroll
  for (int b = 0; b < kBins; ++b) of_thread += static_cast<int32_t>(counts[b]);
  int32_t above = sum_before(of_thread);
  // By all threads, though one has the bin: stores under predicates take as long as a branch of
  // that one, and no warp is split right before the barrier.
#pragma unroll
  for (int b = kBins - 1; b >= 0; --b) {
    const auto inside = static_cast<int32_t>(counts[b]);
    if (above < left && left <= above + inside) {
      shared.bin = first + b;
      shared.left = left - above;
      shared.inside = inside;
    }
    above += inside;
  }
  __syncthreads();
}

}  // namespace litecache::ops::cuda
