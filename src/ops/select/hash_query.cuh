// Codes of queries, for selections by hash codes.
#pragma once

#include "ops/select/top_k_chain.cuh"

namespace litecache::ops::cuda {

constexpr int kMaxHashWords = kChainWords;

// The results of a chain's first kernel, for the next ones.
struct HashQueries {
  uint32_t* codes;  // [group, padded][words], 0 beyond the group
  float* factors;   // [group, padded]: |q| * scale * log2 e / bits, 0 beyond the group
};
__device__ inline HashQueries QueriesOf(const Chain& chain, const LiteCacheShape& shape,
                                        int32_t pair) {
  uint32_t* codes = chain.Of(pair, chain.layout.query);
  const int32_t padded = (shape.group + 7) / 8 * 8;
  return {codes, reinterpret_cast<float*>(codes + padded * kChainWords)};
}

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

// The first kernel: computes the codes of the queries of every pair that selects, in HashQueries.
// weights [kv_heads][head_dim][32 words]; code bit = (sum over c of q[c] * weight[c][bit] > 0),
// with terms in the CPU's order.
void BeginHashSelect(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                     int32_t words, const float* weights);

}  // namespace litecache::ops::cuda
