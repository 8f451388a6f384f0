// What a chain's second kernel does before the first one has ended: it finds its work and loads
// tokens.
#pragma once

#include "ops/select/top_k_chain.cuh"

namespace litecache::ops::cuda {

// Loads of tokens may precede WaitForKernelBefore: their data has not changed since before the
// chain's first kernel, and every kernel of the chain starts after that one has waited. Such loads
// bypass the L1 cache.

// The block of kSelectBlock tokens that contains `token`.
__device__ __forceinline__ const std::byte* CodesOf(const StepSequence& s, const RowTable& table,
                                                    int32_t list, int32_t token,
                                                    int32_t block_bytes) {
  const int32_t page = token / table.page_rows;
  const auto* pages = reinterpret_cast<const unsigned long long*>(
      __ldcg(reinterpret_cast<const unsigned long long*>(&s.pages[table.table])));
  const auto address = __ldcg(pages + int64_t{page} * table.lists + list);
  return reinterpret_cast<const std::byte*>(address) +
         int64_t{(token - page * table.page_rows) / kSelectBlock} * block_bytes;
}

// Like FindWork, but before the first kernel has written the work; target: the first pair's.
// LeaveShare must follow.
__device__ __forceinline__ bool FindWorkEarly(const StepView& step, const LiteCacheShape& shape,
                                              const LiteCacheLayer& layer,
                                              const SelectSource& source, const Chain& chain,
                                              WorkShared& shared, ChainWork* work,
                                              SelectTarget* target) {
  const auto items_of = [&](int32_t pair) {
    SelectTarget found;
    if (!FindTarget(step, shape, layer, source, pair, &found)) return 0;
    const bool all = found.end - found.begin <= found.k;
    return all ? 0 : ItemsOf(found.begin, found.end);
  };
  return FindWork(chain, shared, items_of, work) &&
         FindTarget(step, shape, layer, source, work->pair, target);
}
// Writes the share for the following kernels; call after WaitForKernelBefore.
__device__ __forceinline__ void LeaveShare(const Chain& chain, bool works, const ChainWork& work,
                                           const SelectTarget& target) {
  if (threadIdx.x != 0) return;
  if (works) {
    *ShareOf(chain) = {
        work.pair,    work.first, work.last, work.left, ItemsOf(target.begin, target.end),
        target.begin, target.end, target.k};
  } else {
    *ShareOf(chain) = {};
  }
}

}  // namespace litecache::ops::cuda
