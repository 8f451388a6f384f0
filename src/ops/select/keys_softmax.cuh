// Products of rounded queries with keys in a few bits a channel (keys_select.h), by integer
// products of tensor cores. An estimator of chain_softmax.cuh.
#pragma once

#include "ops/select/chain_softmax.cuh"
#include "ops/select/keys_query.cuh"

namespace litecache::ops::cuda {

// d += a b of 16 rows of 32 unsigned bytes by 8 columns of signed ones (sm_80). A lane passes bytes
// 4 c to 4 c + 3 of rows g (a0) and g + 8 (a1) and of column g (b0), bytes 16 further in a2, a3 and
// b1, with g = lane / 4 and c = lane % 4; it receives columns 2 c and 2 c + 1 of rows g (d[0],
// d[1]) and g + 8 (d[2], d[3]).
__device__ __forceinline__ void AddByteProducts(int32_t (&d)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]));
}

// A product's column 2 c + r is head c of quad r. Its rows are tokens 4 g and 4 g + 1 of a block in
// one product, 4 g + 2 and 4 g + 3 in another. Its bytes are in the order in which a lane has them:
// of word 4 i + c of its tokens, two times four channels.
//
// For groups of one quad and up to 256 channels the first kernel keeps the products for the second,
// whole numbers of 20 bits: the low halves in the memory of the keys and of the listed keys, the
// rest in its own.
//
// kDim: most channels, a multiple of 64.
template <int kBits, int kDim, int kQuads>
struct KeysSoftmax : ChainSoftmax<0, kQuads> {
  using Base = ChainSoftmax<0, kQuads>;
  using Base::kHeads, Base::kBlocks, Base::words, Base::padded, Base::origin, Base::BlockOf;
  using Base::layer, Base::shape, Base::chain, Base::parts, Base::pair, Base::AddShares,
      Base::located;
  static constexpr int kLoads = kDim * kBits / 128;    // of four words of a token
  static constexpr int kPerLoad = kDim / 32 / kLoads;  // products of 32 channels
  // Of a third block of threads on an SM, or more data in flight, the registers hold one.
  static constexpr int kBlocksAnSm = kDim <= 128 ? 3 : kDim <= 256 ? 2 : 1;
  static constexpr int kHeld = kLoads <= 2 ? 2 : 1;
  static constexpr bool kDoneEarly = true, kLocatesAgain = kQuads > 1 || kDim > 256;
  static constexpr int kFloats = 3;  // KeysQueries' factors, sums and first
  static constexpr int32_t kMask = kBits == 4 ? 0x0f0f0f0f : 0x03030303;
  static constexpr int kRow = kDim / 4 + 8;  // 8: heads are in different banks
  static_assert(kPerLoad * kLoads * 32 == kDim);

  static __host__ __device__ int32_t RowOf(int32_t) { return kRow; }
  __device__ int32_t row() const { return kRow; }
  __device__ bool Keeps() const { return !kLocatesAgain; }

  // What a lane holds of its heads: x = (2 p - sum) * factor * scale + shift for a product p.
  struct Query {
    uint32_t bytes[kLoads][kPerLoad][2];  // of the products' column
    float factor[kQuads], first[kQuads];
    int32_t sum[kQuads];
  };
  // The part of a block's tokens that a lane reads.
  struct Tokens {
    uint4 part[kLoads];
    uint2 scales = {};  // f16
  };
  // The products with the mean of the first block of the warp's current 256 tokens.
  struct Centre {
    float mean[kQuads];
  };
  struct Block {
    int32_t value[kQuads][4];
    float shift[kQuads];
    uint2 scales;
  };

  __device__ void ReadQueries() const {
    const KeysQueries queries = KeysQueriesOf(chain, shape, pair);
    constexpr int kUsed = kDim / 4;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < padded() * kUsed; i += kChainThreads) {
      parts.queries[i / kUsed * kRow + i % kUsed] =
          queries.bytes[i / kUsed * kChainWords + i % kUsed];
    }
    for (auto j = static_cast<int32_t>(threadIdx.x); j < padded(); j += kChainThreads) {
      parts.of_queries[j] = queries.factors[j];
      parts.of_queries[padded() + j] = __int_as_float(queries.sums[j]);
      parts.of_queries[2 * padded() + j] = queries.first[j];
    }
  }
  __device__ float FirstOf(int32_t head) const { return parts.of_queries[2 * padded() + head]; }

  // Heads [first_head, first_head + kHeads).
  __device__ Query QueryOf(int32_t first_head) const {
    const int32_t lane = threadIdx.x % 32, column = lane / 4;
    const bool exists = column % 2 < kQuads;
    const int32_t head = first_head + (exists ? kQuad * (column % 2) : 0) + column / 2;
    const uint32_t* bytes = parts.queries + head * kRow + lane % 4 * (2 * kPerLoad);
    Query query;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (int p = 0; p < kPerLoad; ++p) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          query.bytes[i][p][half] = exists ? bytes[8 * kPerLoad * i + 2 * p + half] : 0;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      const int32_t own = first_head + kQuad * r + lane % 4;
      query.factor[r] = parts.of_queries[own];
      query.sum[r] = __float_as_int(parts.of_queries[padded() + own]);
      query.first[r] = FirstOf(own);
    }
    return query;
  }

  __device__ Tokens LoadTokens(const std::byte* block) const {
    const int32_t lane = threadIdx.x % 32;
    const auto* codes = reinterpret_cast<const uint4*>(block) + lane % 4 * 8 + lane / 4;
    Tokens tokens;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      tokens.part[i] = 4 * i + lane % 4 < words() ? __ldcg(codes + 32 * i) : uint4{};
    }
    const std::byte* scales = block + kSelectBlock * 4 * words();
    tokens.scales = __ldcg(reinterpret_cast<const uint2*>(scales) + lane / 4);
    return tokens;
  }

  // value[r][i] = 2 p - sum of quad r's head for the lane's token i.
  static __device__ void Multiply(const Query& query, const Tokens& tokens,
                                  int32_t (&value)[kQuads][4]) {
    int32_t low[4] = {}, high[4] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint4& word = tokens.part[i];
#pragma unroll
      for (int p = 0; p < kPerLoad; ++p) {
        const int shift = 2 * kBits * p, next = shift + kBits;
        AddByteProducts(low, word.x >> shift & kMask, word.y >> shift & kMask,
                        word.x >> next & kMask, word.y >> next & kMask, query.bytes[i][p]);
        AddByteProducts(high, word.z >> shift & kMask, word.w >> shift & kMask,
                        word.z >> next & kMask, word.w >> next & kMask, query.bytes[i][p]);
      }
    }
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      value[r][0] = 2 * low[r] - query.sum[r];
      value[r][1] = 2 * low[2 + r] - query.sum[r];
      value[r][2] = 2 * high[r] - query.sum[r];
      value[r][3] = 2 * high[2 + r] - query.sum[r];
    }
  }
  static __device__ void Scale(const int32_t (&value)[4], float factor, uint2 scales, float shift,
                               float (&x)[4]) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&scales.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&scales.y));
    x[0] = fmaf(static_cast<float>(value[0]) * factor, low.x, shift);
    x[1] = fmaf(static_cast<float>(value[1]) * factor, low.y, shift);
    x[2] = fmaf(static_cast<float>(value[2]) * factor, high.x, shift);
    x[3] = fmaf(static_cast<float>(value[3]) * factor, high.y, shift);
  }
  // The heads' means of a whole block's products.
  static __device__ void MeansOf(const Query& query, const int32_t (&value)[kQuads][4],
                                 uint2 scales, Centre* centre) {
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      float x[4];
      Scale(value[r], query.factor[r], scales, 0, x);
      float sum = (x[0] + x[1]) + (x[2] + x[3]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        sum += __shfl_xor_sync(kFullMask, sum, distance);
      }
      centre->mean[r] = sum / kKeysBlock;
    }
  }
  // The product with the centre of the keys of block t.
  static __device__ float ShiftOf(int32_t t, float first, float mean) {
    return t < kKeysBlock ? 0 : t % kKeysCentre == 0 ? first : first + mean;
  }
  // [group, padded] means of the centres of token t's 256, for the second kernel.
  __device__ float* MeansAt(int32_t t) const {
    const int32_t span = t / kKeysCentre - origin() / kKeysCentre;
    return reinterpret_cast<float*>(chain.Of(pair, chain.layout.centres)) +
           span * ((shape.group + 7) / 8 * 8);
  }
  // The block of token t's centre: usually in the same page as t's own.
  __device__ const std::byte* CentreOf(int32_t t, const std::byte* block) const {
    const int32_t back = t % kKeysCentre;
    if (t % layer.metadata.page_rows < back) return BlockOf(t - back);
    return block - back * (4 * words() + 2);
  }

  __device__ Block BeginBlock(const Query& query, const Tokens& tokens, int b, int32_t slot,
                              int32_t first_head, int32_t index, Centre* centre) const {
    const int32_t lane = threadIdx.x % 32, t = origin() + index;
    Block block;
    Multiply(query, tokens, block.value);
    block.scales = tokens.scales;
    if (Keeps()) {
      auto* scales = reinterpret_cast<uint2*>(chain.Of(pair, chain.layout.norms));
      if (lane % 4 == 0) scales[(index + lane) / 4] = tokens.scales;
    }
    const bool own = t % kKeysCentre == 0;
    if (own || b == 0) {
      if (t < kKeysCentre) {
        *centre = {};
      } else if (own) {
        MeansOf(query, block.value, tokens.scales, centre);
      } else {
        const Tokens others = LoadTokens(CentreOf(t, located[slot]));
        int32_t value[kQuads][4];
        Multiply(query, others, value);
        MeansOf(query, value, others.scales, centre);
      }
      if (lane < kQuad) {
#pragma unroll
        for (int r = 0; r < kQuads; ++r) {
          MeansAt(t)[first_head + kQuad * r + lane] = centre->mean[r];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      block.shift[r] = ShiftOf(t, query.first[r], centre->mean[r]);
    }
    return block;
  }
  __device__ void Estimate(const Query& query, const Tokens&, const Block& block, int32_t, int r,
                           int32_t index, float (&x)[4]) const {
    if (Keeps()) Keep(block.value[r], index + static_cast<int32_t>(threadIdx.x) % 32);
    Scale(block.value[r], query.factor[r], block.scales, block.shift[r], x);
  }

  __device__ uint16_t* RestOf() const {
    return reinterpret_cast<uint16_t*>(chain.Of(pair, chain.layout.rest));
  }
  __device__ void Keep(const int32_t (&value)[4], int32_t at) const {
    const auto low = [&](int i) { return static_cast<uint32_t>(value[i]) & 0xffff; };
    const auto high = [&](int i) { return static_cast<uint32_t>(value[i]) >> 16 & 0xf; };
    chain.Of(pair, chain.layout.keys)[at] = low(0) | low(1) << 16;
    chain.Of(pair, chain.layout.listed)[at] = low(2) | low(3) << 16;
    RestOf()[at] = static_cast<uint16_t>(high(0) | high(1) << 4 | high(2) << 8 | high(3) << 12);
  }
  struct Kept {
    uint32_t low[2], rest;
    uint2 scales;
    float mean;
  };
  __device__ Kept LoadKept(int32_t index) const {
    const int32_t at = index + static_cast<int32_t>(threadIdx.x) % 32;
    const auto* scales = reinterpret_cast<const uint2*>(chain.Of(pair, chain.layout.norms));
    Kept kept;
    kept.low[0] = __ldcg(chain.Of(pair, chain.layout.keys) + at);
    kept.low[1] = __ldcg(chain.Of(pair, chain.layout.listed) + at);
    kept.rest = __ldcg(RestOf() + at);
    kept.scales = __ldcg(scales + at / 4);
    kept.mean = __ldcg(MeansAt(origin() + index) + threadIdx.x % 4);
    return kept;
  }
  __device__ void ScoreKept(const Kept& kept, int32_t index, float (&score)[4]) const {
    const int32_t head = threadIdx.x % 4;
    int32_t value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t high = kept.rest << (28 - 4 * i);  // in the sign's place
      const uint32_t low = kept.low[i / 2] >> (16 * (i % 2)) & 0xffff;
      value[i] = static_cast<int32_t>(high) >> 28 << 16 | static_cast<int32_t>(low);
    }
    float x[4];
    const float shift = ShiftOf(origin() + index, FirstOf(head), kept.mean);
    Scale(value, parts.of_queries[head], kept.scales, shift, x);
    AddShares(x, head, score);
  }
  // Scores of tokens [t, t + 32), reading them again.
  __device__ void ScoreAgain(int32_t t, int32_t slot, float (&score)[4]) const {
    const Tokens tokens = LoadTokens(located[slot]);
    for (int32_t first_head = 0; first_head < shape.group; first_head += kHeads) {
      const Query query = QueryOf(first_head);
      int32_t value[kQuads][4];
      Multiply(query, tokens, value);
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        const int32_t head = first_head + kQuad * r + static_cast<int32_t>(threadIdx.x) % 4;
        float x[4];
        Scale(value[r], query.factor[r], tokens.scales,
              ShiftOf(t, query.first[r], __ldcg(MeansAt(t) + head)), x);
        AddShares(x, head, score);
      }
    }
  }
};

}  // namespace litecache::ops::cuda
