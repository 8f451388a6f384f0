// Estimated scores of tokens from their hash codes: differing bits of codes and queries, computed
// by bit products, and each head's share by a softmax over all candidates. Functions for a warp;
// the kernels that call them are in hash_softmax_select_cuda.cu.
#pragma once

#include <cuda_fp16.h>

#include "ops/select/hash_query.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {

// Query heads that one bit product covers.
constexpr int kQuad = 4;

// d += the number of bits set in both row i of a and column n of b, 16 rows by 8 columns of 128
// bits (sm_80). A lane passes word lane % 4 of rows lane / 4 (a0) and lane / 4 + 8 (a1) and of
// column lane / 4; it receives columns 2 (lane % 4) and the next of rows lane / 4 (d[0], d[1]) and
// lane / 4 + 8 (d[2], d[3]).
__device__ __forceinline__ void CountCommonBits(int32_t (&d)[4], uint32_t a0, uint32_t a1,
                                                uint32_t b) {
  asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// The same for 256 bits: a2, a3 and b1 are words 4 + lane % 4.
__device__ __forceinline__ void CountCommonBits(int32_t (&d)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint32_t b0,
                                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

inline int32_t PaddedGroup(int32_t group, int32_t heads) {
  return (group + heads - 1) / heads * heads;
}

// A block's shared memory: [group, padded][words] codes, then [group, padded] of each of the
// following.
struct SoftmaxParts {
  uint32_t* codes;
  float* factor;   // HashQueries
  float* maximum;  // [1] over all candidates; [kChainWarps] over a warp's
  float* sum;      // likewise: sums of Exp2(x - maximum); over all: 1 / sum
};
constexpr int kSoftmaxWords = 1 + 2 * kChainWarps;  // per head, beside its code

__device__ __forceinline__ SoftmaxParts PartsOf(uint32_t* shared, int32_t padded, int32_t words) {
  auto* factor = reinterpret_cast<float*>(shared + padded * words);
  return {shared, factor, factor + padded, factor + padded + kChainWarps * padded};
}

// A warp processes a block of 32 tokens at a time: its lane 4 g + c handles head c of a quad for
// tokens 4 g to 4 g + 3. Differing bits H = |key| + |query| - 2
// key and query|, all computed by bit products: a product's even columns are a quad's queries, the
// odd ones have all bits set.
//
// Two kernels: the first counts H for all candidates and finds the heads' maxima and sums, in each
// block for its own candidates; the second makes keys from the same tokens' scores.
//
// kWords: words of a code, 0: any number. kQuads: quads of heads that share a read of the codes.
template <int kWords, int kQuads>
struct HashSoftmax {
  static constexpr int kHeads = kQuad * kQuads;
  static constexpr int kParts = kWords > 0 ? kWords / 4 : 1;               // of 128 bits each
  static constexpr int kBlocks = kChainItem / kChainWarps / kSelectBlock;  // of a warp's tokens

  const StepView& step;
  const LiteCacheShape& shape;
  const LiteCacheLayer& layer;
  const Chain& chain;
  int32_t words_of_format;
  SoftmaxParts parts;
  // The current pair.
  int32_t pair = 0, begin = 0, end = 0;

  __device__ int32_t origin() const { return OriginOf(begin); }
  __device__ int32_t words() const { return kWords > 0 ? kWords : words_of_format; }
  __device__ int32_t padded() const { return (shape.group + kHeads - 1) / kHeads * kHeads; }
  // Whether the first kernel's H are kept for the second: instead of being counted twice they take
  // the memory of the keys, and that of the listed keys if there are two quads.
  __device__ bool Keeps() const { return kWords > 0 && shape.group <= kHeads; }
  __device__ uint32_t* KeptOf(int r) const {
    return chain.Of(pair, r == 0 ? chain.layout.keys : chain.layout.listed);
  }
  // First token of block b of this warp's, as an index of keys.
  __device__ int32_t IndexOf(int32_t item, int b) const {
    const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
    return item * kChainItem + (warp * kBlocks + b) * kSelectBlock;
  }

  // What a lane holds of its heads: x = (agree + differ * H) * norm is scale * log2 e times the
  // estimate of q.k.
  struct Query {
    float agree[kQuads], differ[kQuads];
    int32_t set[kQuads];              // |query|
    uint32_t column[kQuads][kParts];  // of the products, if kWords > 0
  };

  // The part of a block's tokens that a lane reads.
  struct Tokens {
    const uint4* codes = nullptr;  // word lane % 4 of its tokens; the next part is 32 further
    uint4 part[kParts];            // if kWords > 0
    uint2 norms = {};              // f16
  };

  // Loads the queries into shared memory; called by all threads, which need a barrier before
  // reading them.
  __device__ void ReadQueries() const {
    const HashQueries queries = QueriesOf(chain, shape, pair);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < padded() * words(); i += kChainThreads) {
      parts.codes[i] = queries.codes[i];
    }
    for (auto j = static_cast<int32_t>(threadIdx.x); j < padded(); j += kChainThreads) {
      parts.factor[j] = queries.factors[j];
    }
  }

  // Heads [first_head, first_head + kHeads).
  __device__ Query QueryOf(int32_t first_head) const {
    const int32_t lane = threadIdx.x % 32;
    Query query;
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      const int32_t quad = first_head + kQuad * r, own = quad + lane % 4;
      const float factor = parts.factor[own];
      query.agree[r] = factor * static_cast<float>(32 * words());
      query.differ[r] = -2 * factor;
      query.set[r] = 0;
      for (int32_t w = 0; w < words(); ++w) query.set[r] += __popc(parts.codes[own * words() + w]);
      if constexpr (kWords > 0) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) query.column[r][i] = Column(quad, i);
      }
    }
    return query;
  }

  // Word 4 part + lane % 4 of column lane / 4.
  __device__ uint32_t Column(int32_t quad, int32_t part) const {
    const int32_t column = threadIdx.x % 32 / 4, w = 4 * part + threadIdx.x % 4;
    if (kWords == 0 && w >= words()) return 0;
    return column % 2 == 1 ? ~0u : parts.codes[(quad + column / 2) * words() + w];
  }

  __device__ const std::byte* BlockOf(int32_t token) const {
    const int32_t list = __ldcg(layer.metadata.list_of_head + pair % shape.kv_heads);
    return CodesOf(step.sequences[pair / shape.kv_heads], layer.metadata, list, token,
                   kSelectBlock * (4 * words() + 2));
  }
  __device__ uint2 LoadNorms(const std::byte* block) const {
    const std::byte* norms = block + kSelectBlock * 4 * words();
    return __ldcg(reinterpret_cast<const uint2*>(norms) + threadIdx.x % 32 / 4);
  }
  // The addresses of the blocks of a warp's next kLocated items, in shared memory: three dependent
  // loads, done once for all of them. By whole warps.
  static constexpr int kLocated = 32 / kBlocks;
  const std::byte** located = nullptr;  // [32], the warp's
  __device__ void Locate(int32_t item) const {
    const int32_t lane = threadIdx.x % 32;
    const int32_t t = origin() + IndexOf(item + lane / kBlocks, lane % kBlocks);
    __syncwarp();  // all lanes have read the previous ones
    located[lane] = t < end ? BlockOf(t) : nullptr;
    __syncwarp();
  }

  // Loads tokens [t, t + 32).
  __device__ Tokens LoadTokens(int32_t t) const { return LoadTokens(BlockOf(t)); }
  __device__ Tokens LoadTokens(const std::byte* block) const {
    const int32_t lane = threadIdx.x % 32;
    Tokens tokens;
    tokens.codes = reinterpret_cast<const uint4*>(block) + lane % 4 * 8 + lane / 4;
    if constexpr (kWords > 0) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) tokens.part[i] = __ldcg(tokens.codes + 32 * i);
    }
    tokens.norms = LoadNorms(block);
    return tokens;
  }
  // Loads all of a warp's blocks of an item, with all loads in flight at once.
  __device__ void LoadItem(Tokens (&tokens)[kBlocks]) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const std::byte* block = located[b];
      if (block != nullptr) tokens[b] = LoadTokens(block);
    }
  }

  // H of the lane's head of quad r, for its four tokens.
  __device__ void Differing(const Query& query, const Tokens& tokens, int32_t quad, int r,
                            int32_t (&h)[4]) const {
    int32_t low[4] = {}, high[4] = {};  // products of tokens 0 and 1, and of tokens 2 and 3
    if constexpr (kWords == 8) {
      const uint4 &a = tokens.part[0], &b = tokens.part[kParts - 1];
      const uint32_t first = query.column[r][0], second = query.column[r][kParts - 1];
      CountCommonBits(low, a.x, a.y, b.x, b.y, first, second);
      CountCommonBits(high, a.z, a.w, b.z, b.w, first, second);
    } else if constexpr (kWords > 0) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        CountCommonBits(low, tokens.part[i].x, tokens.part[i].y, query.column[r][i]);
        CountCommonBits(high, tokens.part[i].z, tokens.part[i].w, query.column[r][i]);
      }
    } else {
      for (int32_t i = 0; 4 * i < words(); ++i) {
        const bool exists = 4 * i + static_cast<int32_t>(threadIdx.x % 4) < words();
        const uint4 part = exists ? __ldcg(tokens.codes + 32 * i) : uint4{};
        const uint32_t column = Column(quad, i);
        CountCommonBits(low, part.x, part.y, column);
        CountCommonBits(high, part.z, part.w, column);
      }
    }
    h[0] = query.set[r] + low[1] - 2 * low[0];
    h[1] = query.set[r] + low[3] - 2 * low[2];
    h[2] = query.set[r] + high[1] - 2 * high[0];
    h[3] = query.set[r] + high[3] - 2 * high[2];
  }

  static __device__ void Estimate(float agree, float differ, const int32_t (&h)[4], uint2 norms,
                                  float (&x)[4]) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&norms.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&norms.y));
    x[0] = fmaf(differ, static_cast<float>(h[0]), agree) * low.x;
    x[1] = fmaf(differ, static_cast<float>(h[1]), agree) * low.y;
    x[2] = fmaf(differ, static_cast<float>(h[2]), agree) * high.x;
    x[3] = fmaf(differ, static_cast<float>(h[3]), agree) * high.y;
  }

  static __device__ uint32_t Pack(const int32_t (&h)[4]) {
    return static_cast<uint32_t>(min(h[0], 255) | min(h[1], 255) << 8 | min(h[2], 255) << 16) |
           static_cast<uint32_t>(min(h[3], 255)) << 24;
  }
  static __device__ void Unpack(uint32_t packed, int32_t (&h)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) h[i] = static_cast<int32_t>(packed >> (8 * i) & 0xff);
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

  // Maxima and sums of the items for heads [first_head, first_head + kHeads), one per warp in
  // shared memory; keeps H.
  __device__ void SumExponentials(const ChainWork& work, int32_t first_head, bool loaded,
                                  Tokens (&tokens)[kBlocks]) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Query query = QueryOf(first_head);
    const bool keeps = Keeps();
    float maximum[kQuads], sum[kQuads];
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      maximum[r] = -kLargestScore;
      sum[r] = 0;
    }
    auto* norms = reinterpret_cast<uint2*>(chain.Of(pair, chain.layout.norms));
    if (!loaded) {
      Locate(work.first);
      LoadItem(tokens);
    }
    for (int32_t item = work.first; item < work.last; ++item) {
      const int32_t next_located = (item + 1 - work.first) % kLocated * kBlocks;
      if (next_located == 0 && item + 1 < work.last) Locate(item + 1);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int32_t index = IndexOf(item, b), t = origin() + index;
        if (t >= end) continue;
        if (keeps && lane % 4 == 0) norms[(index + lane) / 4] = tokens[b].norms;
        const bool whole = t >= begin && t + kSelectBlock <= end;
#pragma unroll
        for (int r = 0; r < kQuads; ++r) {
          int32_t h[4];
          Differing(query, tokens[b], first_head + kQuad * r, r, h);
          if (keeps) KeptOf(r)[index + lane] = Pack(h);
          float x[4];
          Estimate(query.agree[r], query.differ[r], h, tokens[b].norms, x);
          if (!whole) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int32_t token = t + lane / 4 * 4 + i;
              if (token < begin || token >= end) x[i] = -INFINITY;
            }
          }
          const float higher = fmaxf(fmaxf(maximum[r], fmaxf(x[0], x[1])), fmaxf(x[2], x[3]));
          sum[r] =
              sum[r] * Exp2(maximum[r] - higher) + ((Exp2(x[0] - higher) + Exp2(x[1] - higher)) +
                                                    (Exp2(x[2] - higher) + Exp2(x[3] - higher)));
          maximum[r] = higher;
        }
        // The next item's tokens are loaded meanwhile.
        if (item + 1 < work.last) {
          const std::byte* next = located[next_located + b];
          if (next != nullptr) tokens[b] = LoadTokens(next);
        }
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
        parts.maximum[warp * padded() + head] = highest;
        parts.sum[warp * padded() + head] = total;
      }
    }
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

  // Adds the shares of the lane's head of quad r to the scores of its four tokens.
  __device__ void AddShares(const float (&x)[4], int32_t head, float (&score)[4]) const {
    const float maximum = parts.maximum[head], factor = parts.sum[head];
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] = fmaf(Exp2(x[i] - maximum), factor, score[i]);
  }

  // Scores of tokens [t, t + 32), reading their codes again.
  __device__ void ScoreAgain(int32_t t, float (&score)[4]) const {
    const Tokens tokens = LoadTokens(t);
    for (int32_t first_head = 0; first_head < shape.group; first_head += kHeads) {
      const Query query = QueryOf(first_head);
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        const int32_t quad = first_head + kQuad * r;
        int32_t h[4];
        Differing(query, tokens, quad, r, h);
        float x[4];
        Estimate(query.agree[r], query.differ[r], h, tokens.norms, x);
        AddShares(x, quad + static_cast<int32_t>(threadIdx.x) % 4, score);
      }
    }
  }
  // The same from the H that were kept.
  __device__ void ScoreKept(const uint32_t (&kept)[kQuads], uint2 norms, float (&score)[4]) const {
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      const int32_t head = kQuad * r + static_cast<int32_t>(threadIdx.x) % 4;
      const float factor = parts.factor[head];
      int32_t h[4];
      Unpack(kept[r], h);
      float x[4];
      Estimate(factor * static_cast<float>(32 * words()), -2 * factor, h, norms, x);
      AddShares(x, head, score);
    }
  }
};

}  // namespace litecache::ops::cuda
