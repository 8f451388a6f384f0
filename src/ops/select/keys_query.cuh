// Queries rounded to bytes, for the selection by keys in a few bits.
#pragma once

#include "ops/select/chain_softmax.cuh"
#include "ops/select/kept_keys.cuh"

namespace litecache::ops::cuda {

constexpr int kMaxKeysDim = 2 * kChainThreads;

// The results of a chain's first kernel, for the next ones; all 0 beyond the group.
struct KeysQueries {
  uint32_t* bytes;  // [group, padded][kChainWords]: four channels each, 0 from head_dim on
  float* factors;   // [group, padded]: a byte's unit, times the softmax's scale and log2 e
  int32_t* sums;    // [group, padded]: of the bytes, times the format's offset
  float* first;     // [group, padded]: product with the first block's mean, times the same
};
__device__ inline KeysQueries KeysQueriesOf(const Chain& chain, const LiteCacheShape& shape,
                                            int32_t pair) {
  static_assert(4 * kChainWords == kMaxKeysDim);
  uint32_t* bytes = chain.Of(pair, chain.layout.query);
  const int32_t padded = (shape.group + 7) / 8 * 8;
  auto* floats = reinterpret_cast<float*>(bytes + padded * kChainWords);
  return {bytes, floats, reinterpret_cast<int32_t*>(floats + padded), floats + 2 * padded};
}

// The first kernel: rotates and rounds the queries of every pair that selects.
void BeginKeysSelect(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                     const KeysLayout& layout, const float* rotation);

}  // namespace litecache::ops::cuda
