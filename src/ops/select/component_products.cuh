// Products of queries with keys of which a few components are kept (ProjectionFormat).
#pragma once

#include "ops/select/litecache_select.cuh"

namespace litecache::ops::cuda {

// By a warp, for kHeads query heads from `first_head` on: components(q).components(k) of tokens t +
// lane, t a multiple of 32. Two bf16 per word, 32 tokens interleaved; each lane handles one token.
// queries [group, padded][2 pairs].
template <int kHeads>
__device__ __forceinline__ void ComponentProducts(const ScoreJob& job, const float* queries,
                                                  int32_t pairs, int32_t t, int32_t first_head,
                                                  float (&s)[kHeads]) {
  const RowTable& table = job.layer.metadata;
  const int32_t list = table.list_of_head[job.target.head];
  const int32_t page = t / table.page_rows;
  const auto* words =
      reinterpret_cast<const uint32_t*>(PageOf(*job.target.sequence, table, list, page)) +
      int64_t{t - page * table.page_rows} * pairs + threadIdx.x % 32;
  const float* q = queries + first_head * 2 * pairs;
  float even[kHeads] = {}, odd[kHeads] = {};
#pragma unroll 4
  for (int32_t p = 0; p < pairs; ++p) {
    const uint32_t pair = words[p * kSelectBlock];
    const float first = __uint_as_float(pair << 16);
    const float second = __uint_as_float(pair & 0xffff0000u);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(q + 2 * (j * pairs + p));
      even[j] = fmaf(first, factor.x, even[j]);
      odd[j] = fmaf(second, factor.y, odd[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kHeads; ++j) s[j] = even[j] + odd[j];
}

}  // namespace litecache::ops::cuda
