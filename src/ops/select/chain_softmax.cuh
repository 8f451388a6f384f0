// Selection by the sum of softmaxes of a group's estimated products, in two kernels over all
// candidates: the first computes the heads' maxima and sums, in each block for its own candidates;
// the second makes keys from the same tokens' scores. An Estimator says what a token's data and the
// queries are, and computes the products: hash_softmax.cuh, keys_softmax.cuh.
#pragma once

#include <cuda_fp16.h>

#include "ops/select/chain_early.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {

// Query heads whose products a warp's lanes have at once.
constexpr int kQuad = 4;

inline int32_t PaddedGroup(int32_t group, int32_t heads) {
  return (group + heads - 1) / heads * heads;
}

// A block's shared memory: [group, padded][row] words of the queries, then [floats][group, padded]
// beside them, then [group, padded] of each of the following.
struct SoftmaxParts {
  uint32_t* queries;
  float* of_queries;
  float* maximum;  // [1] over all candidates; [kChainWarps] over a warp's
  float* sum;      // likewise: sums of Exp2(x - maximum); over all: 1 / sum
};

__device__ __forceinline__ SoftmaxParts PartsOf(uint32_t* shared, int32_t padded, int32_t row,
                                                int32_t floats) {
  auto* of_queries = reinterpret_cast<float*>(shared + padded * row);
  float* maximum = of_queries + floats * padded;
  return {shared, of_queries, maximum, maximum + kChainWarps * padded};
}
inline size_t SoftmaxBytes(int32_t padded, int32_t row, int32_t floats) {
  return sizeof(float) * static_cast<size_t>(padded * (row + floats + 2 * kChainWarps));
}

// What estimators share. A warp processes a block of 32 tokens at a time: its lane 4 g + c handles
// head c of a quad for tokens 4 g to 4 g + 3.
//
// kWords: words of a token's data, 0: any number. kQuads: quads of heads that share a read of it.
template <int kWords, int kQuadsOfRead>
struct ChainSoftmax {
  static constexpr int kQuads = kQuadsOfRead;
  static constexpr int kHeads = kQuad * kQuads;
  static constexpr int kBlocks = kChainItem / kChainWarps / kSelectBlock;  // of a warp's tokens

  const StepView& step;
  const LiteCacheShape& shape;
  const LiteCacheLayer& layer;
  const Chain& chain;
  const SoftCapOf& cap;  // SelectSource's
  int32_t words_of_format;
  SoftmaxParts parts;
  // The current pair.
  int32_t pair = 0, begin = 0, end = 0;
  const std::byte** located = nullptr;  // [32], the warp's

  __device__ int32_t origin() const { return OriginOf(begin); }
  __device__ int32_t words() const { return kWords > 0 ? kWords : words_of_format; }
  __device__ int32_t padded() const { return (shape.group + kHeads - 1) / kHeads * kHeads; }
  // First token of block b of this warp's, as an index of keys.
  __device__ int32_t IndexOf(int32_t item, int b) const {
    const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
    return item * kChainItem + (warp * kBlocks + b) * kSelectBlock;
  }

  __device__ const std::byte* BlockOf(int32_t token) const {
    const int32_t list = __ldcg(layer.metadata.list_of_head + pair % shape.kv_heads);
    return CodesOf(step.sequences[pair / shape.kv_heads], layer.metadata, list, token,
                   kSelectBlock * (4 * words() + 2));
  }
  // The addresses of the blocks of a warp's next kLocated items, in shared memory: three dependent
  // loads, done once for all of them. By whole warps.
  static constexpr int kLocated = 32 / kBlocks;
  __device__ void Locate(int32_t item) const {
    const int32_t lane = threadIdx.x % 32;
    const int32_t t = origin() + IndexOf(item + lane / kBlocks, lane % kBlocks);
    __syncwarp();  // all lanes have read the previous ones
    located[lane] = t < end ? BlockOf(t) : nullptr;
    __syncwarp();
  }

  // Sums over a quad's lanes what each has for the lane's four tokens; each lane receives the sum
  // for its own token, t + lane.
  static __device__ float SumOfQuad(const float (&score)[4]) {
    const bool odd = threadIdx.x % 2 == 1, second = threadIdx.x / 2 % 2 == 1;
    const float a =
        (odd ? score[1] : score[0]) + __shfl_xor_sync(kFullMask, odd ? score[0] : score[1], 1);
    const float b =
        (odd ? score[3] : score[2]) + __shfl_xor_sync(kFullMask, odd ? score[2] : score[3], 1);
    return (second ? b : a) + __shfl_xor_sync(kFullMask, second ? a : b, 2);
  }

  // [items] of head j: maximum and sum.
  __device__ float2* PartialsOf(int32_t j) const {
    return reinterpret_cast<float2*>(chain.Of(pair, chain.layout.partials)) +
           j * chain.layout.items;
  }
  // Writes the combined result of the block's items as the partial result of the first one, and
  // neutral values for the others.
  __device__ void LeavePartials(const ChainWork& work) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t j = warp; j < shape.group; j += kChainWarps) {
      const bool exists = lane < kChainWarps;
      const float of_warp = exists ? parts.maximum[lane * padded() + j] : -kLargestScore;
      const float highest = WarpMax(of_warp);
      const float total =
          WarpSum(exists ? parts.sum[lane * padded() + j] * Exp2(of_warp - highest) : 0.0f);
      for (int32_t item = work.first + lane; item < work.last; item += 32) {
        PartialsOf(j)[item] =
            item == work.first ? float2{highest, total} : float2{-kLargestScore, 0};
      }
    }
  }
  // Combines all items' partial results into shared memory.
  __device__ void CombinePartials(int32_t items) const {
    constexpr int kLoads = 8;
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t j = warp; j < padded(); j += kChainWarps) {
      float highest = -kLargestScore, total = 0;
      for (int32_t first = lane; j < shape.group && first < items; first += 32 * kLoads) {
        float2 partial[kLoads];
        float higher = highest;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int32_t item = first + 32 * i;
          partial[i] = item < items ? __ldcg(PartialsOf(j) + item) : float2{-kLargestScore, 0};
          higher = fmaxf(higher, partial[i].x);
        }
        total *= Exp2(highest - higher);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) total += partial[i].y * Exp2(partial[i].x - higher);
        highest = higher;
      }
      const float of_all = WarpMax(highest);
      total = WarpSum(total * Exp2(highest - of_all));
      if (lane == 0) {
        // Heads beyond the group contribute nothing.
        parts.maximum[j] = j < shape.group ? of_all : 0;
        parts.sum[j] = j < shape.group ? 1 / total : 0;
      }
    }
  }

  // Adds the shares of a head, of which the lane has the estimates of its four tokens, to their
  // scores.
  __device__ void AddShares(float (&x)[4], int32_t head, float (&score)[4]) const {
    cap.Apply(x);
    const float maximum = parts.maximum[head], factor = parts.sum[head];
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] = fmaf(Exp2(x[i] - maximum), factor, score[i]);
  }
};

// Estimators derive from ChainSoftmax and have
//   int kBlocksAnSm
//     blocks of threads that the registers must suffice for
//   int kHeld
//     blocks whose data a warp loads ahead, at most kBlocks
//   bool kDoneEarly
//     whether a block's data is not needed after BeginBlock
//   int kFloats, RowOf(words)
//     of a query in shared memory: PartsOf
//   Tokens LoadTokens(block), Query QueryOf(first_head)
//     what a lane holds of a block's tokens, and of heads [first_head, first_head + kHeads)
//   void ReadQueries()
//     loads the queries into shared memory; called by all threads, which need a barrier before they
//     read them
//   Block BeginBlock(query, tokens, b, slot, first_head, index, centre)
//     begins with block b of a warp's in an item, keys [index, index + 32), by whole warps and in
//     the order of b. slot: of the block's address in `located`, for b = 0 and kHeld < kBlocks.
//     Centre: what a warp's blocks share
//   void Estimate(query, tokens, block, first_head, r, index, x)
//     x[4]: log2 e times the estimates for the lane's head of quad r, without a cap
//   bool Keeps()
//     whether the first kernel keeps what the second makes scores from
//   bool kLocatesAgain
//     whether ScoreAgain reads `located`
//   Kept LoadKept(index), void ScoreKept(kept, index, score), void ScoreAgain(t, slot, score)
//     for the second kernel: add the heads' shares to the scores of the lane's four tokens

// Loads the first blocks of the item whose blocks have been located, with all loads in flight at
// once.
template <class Estimator>
__device__ __forceinline__ void LoadFirst(const Estimator& softmax,
                                          typename Estimator::Tokens (&tokens)[Estimator::kHeld]) {
#pragma unroll
  for (int b = 0; b < Estimator::kHeld; ++b) {
    const std::byte* block = softmax.located[b];
    if (block != nullptr) tokens[b] = softmax.LoadTokens(block);
  }
}

// Maxima and sums of the items for heads [first_head, first_head + kHeads), one per warp in shared
// memory. loaded: the first item's data is in tokens.
template <class Estimator>
__device__ __forceinline__ void SumExponentials(
    const Estimator& softmax, const ChainWork& work, int32_t first_head, bool loaded,
    typename Estimator::Tokens (&tokens)[Estimator::kHeld]) {
  constexpr int kQuads = Estimator::kQuads, kBlocks = Estimator::kBlocks;
  constexpr int kHeld = Estimator::kHeld, kLocated = Estimator::kLocated;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const typename Estimator::Query query = softmax.QueryOf(first_head);
  float maximum[kQuads], sum[kQuads];
#pragma unroll
  for (int r = 0; r < kQuads; ++r) {
    maximum[r] = -kLargestScore;
    sum[r] = 0;
  }
  typename Estimator::Centre centre = {};
  if (!loaded) {
    softmax.Locate(work.first);
    LoadFirst(softmax, tokens);
  }
  for (int32_t item = work.first; item < work.last; ++item) {
    const int32_t next_located = (item + 1 - work.first) % kLocated * kBlocks;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b == kBlocks - kHeld && next_located == 0 && item + 1 < work.last) {
        softmax.Locate(item + 1);
      }
      const int32_t index = softmax.IndexOf(item, b), t = softmax.origin() + index;
      if (t >= softmax.end) continue;
      const int32_t slot = (item - work.first) % kLocated * kBlocks + b;
      const auto load_following = [&] {
        if (b + kHeld < kBlocks || item + 1 < work.last) {
          const std::byte* next =
              softmax
                  .located[b + kHeld < kBlocks ? slot + kHeld : next_located + b + kHeld - kBlocks];
          if (next != nullptr) tokens[b % kHeld] = softmax.LoadTokens(next);
        }
      };
      const auto block =
          softmax.BeginBlock(query, tokens[b % kHeld], b, slot, first_head, index, &centre);
      if constexpr (Estimator::kDoneEarly) load_following();
      const bool whole = t >= softmax.begin && t + kSelectBlock <= softmax.end;
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        float x[4];
        softmax.Estimate(query, tokens[b % kHeld], block, first_head, r, index, x);
        softmax.cap.Apply(x);
        if (!whole) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int32_t token = t + lane / 4 * 4 + i;
            if (token < softmax.begin || token >= softmax.end) x[i] = -INFINITY;
          }
        }
        const float higher = fmaxf(fmaxf(maximum[r], fmaxf(x[0], x[1])), fmaxf(x[2], x[3]));
        sum[r] = sum[r] * Exp2(maximum[r] - higher) + ((Exp2(x[0] - higher) + Exp2(x[1] - higher)) +
                                                       (Exp2(x[2] - higher) + Exp2(x[3] - higher)));
        maximum[r] = higher;
      }
      if constexpr (!Estimator::kDoneEarly) load_following();
    }
  }
#pragma unroll
  for (int r = 0; r < kQuads; ++r) {
    float highest = maximum[r];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(kFullMask, highest, distance));
    }
    float total = sum[r] * Exp2(maximum[r] - highest);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      total += __shfl_xor_sync(kFullMask, total, distance);
    }
    if (lane < kQuad) {
      const int32_t head = first_head + kQuad * r + lane;
      softmax.parts.maximum[warp * softmax.padded() + head] = highest;
      softmax.parts.sum[warp * softmax.padded() + head] = total;
    }
  }
}

}  // namespace litecache::ops::cuda
