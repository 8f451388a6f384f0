// Products of queries and keys, estimated from their hash codes: differing bits of codes and
// queries, computed by bit products. An estimator of chain_softmax.cuh.
#pragma once

#include "ops/select/chain_softmax.cuh"
#include "ops/select/hash_query.cuh"

namespace litecache::ops::cuda {

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

// Differing bits H = |key| + |query| - 2 |key and query|, all computed by bit products: a product's
// even columns are a quad's queries, the odd ones have all bits set. They are kept for the second
// kernel if they fit.
//
// kWords: words of a code, 0: any number. kQuads: quads of heads that share a read of the codes.
template <int kWords, int kQuads>
struct HashSoftmax : ChainSoftmax<kWords, kQuads> {
  using Base = ChainSoftmax<kWords, kQuads>;
  using Base::kHeads, Base::kBlocks, Base::words, Base::padded, Base::BlockOf, Base::AddShares;
  using Base::shape, Base::chain, Base::parts, Base::pair;
  static constexpr int kParts = kWords > 0 ? kWords / 4 : 1;  // of 128 bits each
  static constexpr int kBlocksAnSm = 3;
  static constexpr int kHeld = kBlocks;
  static constexpr bool kDoneEarly = false, kLocatesAgain = false;
  static constexpr int kFloats = 1;  // HashQueries' factors
  static __host__ __device__ int32_t RowOf(int32_t words) { return words; }
  __device__ int32_t row() const { return words(); }

  // Whether the first kernel's H are kept for the second: instead of being counted twice they take
  // the memory of the keys, and that of the listed keys if there are two quads.
  __device__ bool Keeps() const { return kWords > 0 && shape.group <= kHeads; }
  __device__ uint32_t* KeptOf(int r) const {
    return chain.Of(pair, r == 0 ? chain.layout.keys : chain.layout.listed);
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
      parts.queries[i] = queries.codes[i];
    }
    for (auto j = static_cast<int32_t>(threadIdx.x); j < padded(); j += kChainThreads) {
      parts.of_queries[j] = queries.factors[j];
    }
  }

  // Heads [first_head, first_head + kHeads).
  __device__ Query QueryOf(int32_t first_head) const {
    const int32_t lane = threadIdx.x % 32;
    Query query;
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      const int32_t quad = first_head + kQuad * r, own = quad + lane % 4;
      const float factor = parts.of_queries[own];
      query.agree[r] = factor * static_cast<float>(32 * words());
      query.differ[r] = -2 * factor;
      query.set[r] = 0;
      for (int32_t w = 0; w < words(); ++w) {
        query.set[r] += __popc(parts.queries[own * words() + w]);
      }
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
    return column % 2 == 1 ? ~0u : parts.queries[(quad + column / 2) * words() + w];
  }

  __device__ uint2 LoadNorms(const std::byte* block) const {
    const std::byte* norms = block + kSelectBlock * 4 * words();
    return __ldcg(reinterpret_cast<const uint2*>(norms) + threadIdx.x % 32 / 4);
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

  static __device__ void EstimateFrom(float agree, float differ, const int32_t (&h)[4], uint2 norms,
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

  struct Centre {};
  struct Block {};
  __device__ Block BeginBlock(const Query&, const Tokens& tokens, int, int32_t, int32_t,
                              int32_t index, Centre*) const {
    const int32_t lane = threadIdx.x % 32;
    auto* norms = reinterpret_cast<uint2*>(chain.Of(pair, chain.layout.norms));
    if (Keeps() && lane % 4 == 0) norms[(index + lane) / 4] = tokens.norms;
    return {};
  }
  __device__ void Estimate(const Query& query, const Tokens& tokens, const Block&,
                           int32_t first_head, int r, int32_t index, float (&x)[4]) const {
    int32_t h[4];
    Differing(query, tokens, first_head + kQuad * r, r, h);
    if (Keeps()) KeptOf(r)[index + static_cast<int32_t>(threadIdx.x) % 32] = Pack(h);
    EstimateFrom(query.agree[r], query.differ[r], h, tokens.norms, x);
  }

  // Scores of tokens [t, t + 32), reading their codes again.
  __device__ void ScoreAgain(int32_t t, int32_t, float (&score)[4]) const {
    const Tokens tokens = LoadTokens(t);
    for (int32_t first_head = 0; first_head < shape.group; first_head += kHeads) {
      const Query query = QueryOf(first_head);
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        const int32_t quad = first_head + kQuad * r;
        int32_t h[4];
        Differing(query, tokens, quad, r, h);
        float x[4];
        EstimateFrom(query.agree[r], query.differ[r], h, tokens.norms, x);
        AddShares(x, quad + static_cast<int32_t>(threadIdx.x) % 4, score);
      }
    }
  }
  // The same from the H that were kept.
  struct Kept {
    uint32_t h[kQuads];
    uint2 norms;
  };
  __device__ Kept LoadKept(int32_t index) const {
    const int32_t lane = threadIdx.x % 32;
    const auto* norms = reinterpret_cast<const uint2*>(chain.Of(pair, chain.layout.norms));
    Kept kept;
    kept.norms = __ldcg(norms + (index + lane) / 4);
#pragma unroll
    for (int r = 0; r < kQuads; ++r) kept.h[r] = __ldcg(KeptOf(r) + index + lane);
    return kept;
  }
  __device__ void ScoreKept(const Kept& kept, int32_t, float (&score)[4]) const {
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      const int32_t head = kQuad * r + static_cast<int32_t>(threadIdx.x) % 4;
      const float factor = parts.of_queries[head];
      int32_t h[4];
      Unpack(kept.h[r], h);
      float x[4];
      EstimateFrom(factor * static_cast<float>(32 * words()), -2 * factor, h, kept.norms, x);
      AddShares(x, head, score);
    }
  }
};

}  // namespace litecache::ops::cuda
