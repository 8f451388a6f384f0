// Finds the bin of the k-th largest key in a histogram that the threads of a block hold in
// registers.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// The bin that contains the left-th largest key: thread t has the counts of kBins bins, the first
// of them `first`, and higher threads have lower bins. sum_before(of_thread): the sum over the
// preceding threads, called by all threads. Writes bin, left and inside to shared, visible to all
// threads on return.
template <int kBins, class SumBefore, class Shared>
__device__ __forceinline__ void FindBin(const uint32_t (&counts)[kBins], int32_t first,
                                        int32_t left, const SumBefore& sum_before, Shared& shared) {
  int32_t of_thread = 0;
#pragma unroll
  for (int b = 0; b < kBins; ++b) of_thread += static_cast<int32_t>(counts[b]);
  int32_t above = sum_before(of_thread);
  // All threads execute the stores, though only one has the bin: predicated stores take as long as
  // a branch of that thread, and no warp diverges right before the barrier.
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
