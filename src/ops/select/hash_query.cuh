// Codes of queries, for selections by hash codes.
#pragma once

#include "ops/select/chain_early.cuh"

namespace litecache::ops::cuda {

constexpr int kMaxHashWords = 64;
static_assert(kMaxHashWords <= kChainWords);

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

// The first kernel: computes the codes of the queries of every pair that selects, in HashQueries.
// weights [kv_heads][head_dim][32 words]; code bit = (sum over c of q[c] * weight[c][bit] > 0),
// with terms in the CPU's order.
void BeginHashSelect(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                     int32_t words, const float* weights);

}  // namespace litecache::ops::cuda
