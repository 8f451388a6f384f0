// Merges the results that the warps of a block, and the blocks of a pair, have over different rows
// (Flash-Decoding).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/split_problem.cuh"
#include "ops/common/online_softmax.cuh"

namespace litecache::ops::cuda::split {

// A warp's running softmax: for a lane's two queries the maximum of the scores, the sum of the
// probabilities, and kProducts results of matrix products.
template <int kProducts>
struct SoftmaxState {
  float maximum[2], sum[2];
  float out[kProducts][4];

  __device__ void Clear() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      maximum[h] = -kLargestScore;
      sum[h] = 0;
    }
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = 0;
    }
  }
};

// What the warps of a block exchange at the end of a pair.
template <int kWarps, int kRows>
struct WarpResults {
  float maximum[kWarps][kRows], sum[kWarps][kRows];
  int32_t out[kWarps];     // offset in shared memory; negative: the warp had no tile of the pair
  uint32_t tiles[kWarps];  // while tiles are counted
  bool last_to_arrive;
};

// Results of the same query over different rows, rescaled to one maximum: kPairs neighbouring pairs
// of values.
template <int kPairs>
struct Merged {
  float maximum = -kLargestScore, sum = 0;
  float2 out[kPairs] = {};

  template <int kCount>
  __device__ void Add(const float (&maxima)[kCount], const float (&sums)[kCount],
                      const float2 (&values)[kCount][kPairs]) {
    float highest = maximum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) highest = fmaxf(highest, maxima[i]);
    const float kept = Exp2(maximum - highest);
    maximum = highest;
    sum *= kept;
#pragma unroll
    for (float2& o : out) o = {kept * o.x, kept * o.y};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float factor = Exp2(maxima[i] - highest);
      sum += factor * sums[i];
#pragma unroll
      for (int v = 0; v < kPairs; ++v) {
        out[v].x += factor * values[i][v].x;
        out[v].y += factor * values[i][v].y;
      }
    }
  }

  // Writes the final result: values from c on of the query head whose output begins at `column`.
  __device__ void Store(const AttentionArrays& a, int64_t row, int32_t column, int32_t c) const {
    const float total = a.WithSink(column, maximum, sum);
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      a.Store(row, column + c + 2 * v, out[v].x / total, out[v].y / total);
    }
    if (c == 0) a.StoreLogSum(row, column, maximum, sum);
  }
};

// Writes the block's result of a pair to out, or to `partial` if it is only a part. Called by the
// whole block, after every warp has left its own result in `memory`.
template <int kHeadDim, bool kChunk, int kMaxWarps, int kRows>
__device__ void MergeWarps(const SplitProblem& p, const SplitProblem::Queries<kChunk>& queries,
                           const WarpResults<kMaxWarps, kRows>& shared, const std::byte* memory,
                           float* partial) {
  const int head_dim = p.arrays.head_dim, halves = head_dim / 2;
  const int warps = blockDim.x / 32;
  for (int i = threadIdx.x; i < queries.count * halves; i += blockDim.x) {
    const int r = i / halves, c = 2 * (i - r * halves);
    float maxima[kMaxWarps], sums[kMaxWarps];
    float2 values[kMaxWarps][1];
#pragma unroll
    for (int w = 0; w < kMaxWarps; ++w) {
      const int32_t out = w < warps ? shared.out[w] : -1;
      maxima[w] = out >= 0 ? shared.maximum[w][r] : -kLargestScore;
      sums[w] = out >= 0 ? shared.sum[w][r] : 0.0f;
      values[w][0] = out >= 0
                         ? *reinterpret_cast<const float2*>(memory + out + (r * kHeadDim + c) * 4)
                         : make_float2(0, 0);
    }
    Merged<1> merged;
    merged.Add(maxima, sums, values);
    if (partial == nullptr) {
      merged.Store(p.arrays, queries.Row(p.arrays, r), queries.Column(p.arrays, r), c);
      continue;
    }
    if (c == 0) {
      partial[r] = merged.maximum;
      partial[p.queries + r] = merged.sum;
    }
    *reinterpret_cast<float2*>(partial + 2 * p.queries + r * head_dim + c) = merged.out[0];
  }
}

// Merges the partial results of blocks first .. last into out. Called by the whole block. With four
// values a thread where 66 blocks share a pair (two KV heads of 256, an H200), loads come in fewer
// rounds, which saves 2 of 43 us.
template <bool kChunk>
__device__ void MergeBlocks(const SplitProblem& p, int32_t pair,
                            const SplitProblem::Queries<kChunk>& queries, uint32_t first,
                            uint32_t last) {
  constexpr int kAtOnce = 16, kPairs = 2;
  const int head_dim = p.arrays.head_dim, parts = head_dim / (2 * kPairs);
  for (int i = threadIdx.x; i < queries.count * parts; i += blockDim.x) {
    const int r = i / parts, c = 2 * kPairs * (i - r * parts);
    Merged<kPairs> merged;
    for (uint32_t begin = first; begin <= last; begin += kAtOnce) {
      float maxima[kAtOnce], sums[kAtOnce];
      float2 values[kAtOnce][kPairs];
#pragma unroll
      for (uint32_t b = 0; b < kAtOnce; ++b) {
        const bool there = begin + b <= last;
        const float* partial = p.Partial(pair, there ? begin + b : last);
        maxima[b] = __ldcg(partial + r);
        sums[b] = __ldcg(partial + p.queries + r);
        const auto* own =
            reinterpret_cast<const float2*>(partial + 2 * p.queries + r * head_dim + c);
#pragma unroll
        for (int v = 0; v < kPairs; ++v) values[b][v] = __ldcg(own + v);
        if (!there) maxima[b] = -INFINITY;
      }
      merged.Add(maxima, sums, values);
    }
    merged.Store(p.arrays, queries.Row(p.arrays, r), queries.Column(p.arrays, r), c);
  }
}

// Adds one; returns the previous value.
__device__ inline uint32_t CountArrival(uint32_t* arrivals) {
#ifdef __CUDA_ARCH__
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(arrivals)
               : "memory");
  return before;
#else
  return (*arrivals)++;
#endif
}

// Call after the block has written its partial result of the pair; merges the results if this block
// is the last. Called by the whole block.
template <bool kChunk, class Results>
__device__ void Arrive(const SplitProblem& p, int32_t pair,
                       const SplitProblem::Queries<kChunk>& queries, uint32_t first, uint32_t last,
                       Results* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    // A block begins at most one pair that continues in later blocks: the pair uses that block's
    // counter.
    uint32_t* arrivals = p.arrivals + first;
    // Releases this block's writes, and acquires those of the blocks before.
    shared->last_to_arrive = CountArrival(arrivals) == last - first;
    if (shared->last_to_arrive) *arrivals = 0;  // reset for the next kernel
  }
  __syncthreads();
  if (shared->last_to_arrive) MergeBlocks(p, pair, queries, first, last);
}

}  // namespace litecache::ops::cuda::split
