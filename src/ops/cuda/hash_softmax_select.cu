#include <cuda_fp16.h>

#include "ops/cuda/hash_codes.cuh"
#include "ops/cuda/hash_softmax_select.h"
#include "ops/cuda/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

// Query heads that one product of bits covers.
constexpr int kQuad = 4;

// d += bits that row i of a and column n of b both have set, 16 rows by 8 columns of 128 bits
// (sm_80). A lane gives word lane % 4 of rows lane / 4 (a0) and lane / 4 + 8 (a1) and of column
// lane / 4; it has columns 2 (lane % 4) and the next of rows lane / 4 (d[0], d[1]) and lane / 4 + 8
// (d[2], d[3]).
__device__ __forceinline__ void CountCommonBits(int32_t (&d)[4], uint32_t a0, uint32_t a1,
                                                uint32_t b) {
  asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// The same of 256 bits: a2, a3 and b1 are words 4 + lane % 4.
__device__ __forceinline__ void CountCommonBits(int32_t (&d)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint32_t b0,
                                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct HashSoftmaxShared {
  SoftmaxShared softmax;
  float factor[kMaxSoftmaxGroup];  // |q| * scale * log2 e / bits; 0 beyond the group
  uint32_t codes[1];               // [group, padded][words]
};

int64_t PaddedGroup(int64_t group, int64_t heads) { return (group + heads - 1) / heads * heads; }

// A warp takes a block of 32 tokens at a time: its lane 4 g + c has head c of a quad for tokens 4 g
// to 4 g + 3. Differing bits H = |key| + |query| - 2 |key and query|, all of them from products of
// bits: a product's even columns are a quad's queries, the odd ones have all bits set.
//
// kWords: words of a code, 0: any number. kQuads: quads of heads that share a read of the codes.
template <int kWords, int kQuads>
struct HashSoftmaxScorer {
  static constexpr int kHeads = kQuad * kQuads;
  static constexpr int kParts = kWords > 0 ? kWords / 4 : 1;  // 128 bits each
  // One quad's H of a token take no more memory than the token's key will: they are kept there
  // instead of counted twice.
  static constexpr bool kKeeps = kWords > 0 && kQuads == 1;

  int32_t words_of_format;
  const float* weights;  // [kv_heads][head_dim][bits]

  __device__ int32_t words() const { return kWords > 0 ? kWords : words_of_format; }

  // What a lane knows of its heads: x = (agree + differ * H) * norm is scale * log2 e times the
  // estimate of q.k.
  struct Query {
    float agree[kQuads], differ[kQuads];
    int32_t set[kQuads];              // |query|
    uint32_t column[kQuads][kParts];  // of the products, where kWords > 0
  };

  // A block's tokens, as far as a lane reads them.
  struct Tokens {
    const uint4* codes;  // word lane % 4 of its tokens; the next part is 32 further
    uint4 part[kParts];  // where kWords > 0
    uint2 norms;         // f16
  };

  __device__ void HashQueries(const ClusterTeam& team, const ScoreJob& job,
                              HashSoftmaxShared* shared) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t d = job.shape.head_dim, group = job.shape.group;
    const int32_t padded = (group + kHeads - 1) / kHeads * kHeads;
    HashOwnWords(team, job, weights, words(), shared->codes);
    // Finite for any query: |x| stays below the largest score.
    const float bits = static_cast<float>(32 * words());
    const float largest = kLargestScore / (65504 * bits);
    for (int32_t j = warp; j < padded; j += kTeamWarps) {
      float sum = 0;
      for (int32_t c = lane; j < group && c < d; c += 32) {
        const float x = job.target.q[j * d + c];
        sum = fmaf(x, x, sum);
      }
      const float length = sqrtf(WarpSum(sum));
      if (lane == 0) shared->factor[j] = fminf(length * job.scale * kLog2E / bits, largest);
    }
    team.Sync();
    // Every block reads the others' words and writes none of its own, which they read.
    for (int32_t i = threadIdx.x; i < padded * words(); i += kTeamThreads) {
      const int32_t owner = i % words() % team.size;
      if (i >= group * words()) {
        shared->codes[i] = 0;
      } else if (owner != team.rank) {
        shared->codes[i] = team.Of(shared->codes, owner)[i];
      }
    }
    __syncthreads();
  }

  // Heads [first_head, first_head + kHeads).
  __device__ Query QueryOf(const HashSoftmaxShared* shared, int32_t first_head) const {
    const int32_t lane = threadIdx.x % 32;
    Query query;
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      const int32_t quad = first_head + kQuad * r, own = quad + lane % 4;
      const float factor = shared->factor[own];
      query.agree[r] = factor * static_cast<float>(32 * words());
      query.differ[r] = -2 * factor;
      query.set[r] = 0;
      for (int32_t w = 0; w < words(); ++w) {
        query.set[r] += __popc(shared->codes[own * words() + w]);
      }
      if constexpr (kWords > 0) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) query.column[r][i] = Column(shared, quad, i);
      }
    }
    return query;
  }

  // Word 4 part + lane % 4 of column lane / 4.
  __device__ uint32_t Column(const HashSoftmaxShared* shared, int32_t quad, int32_t part) const {
    const int32_t column = threadIdx.x % 32 / 4, w = 4 * part + threadIdx.x % 4;
    if (kWords == 0 && w >= words()) return 0;
    return column % 2 == 1 ? ~0u : shared->codes[(quad + column / 2) * words() + w];
  }

  __device__ const std::byte* BlockOf(const ScoreJob& job, int32_t t) const {
    const RowTable& table = job.layer.metadata;
    const int32_t page = t / table.page_rows, block_bytes = kSelectBlock * (4 * words() + 2);
    return PageOf(*job.target.sequence, table, table.list_of_head[job.target.head], page) +
           int64_t{(t - page * table.page_rows) / kSelectBlock} * block_bytes;
  }

  __device__ uint2 LoadNorms(const std::byte* block) const {
    const std::byte* norms = block + kSelectBlock * 4 * words();
    return reinterpret_cast<const uint2*>(norms)[threadIdx.x % 32 / 4];
  }

  // Tokens [t, t + 32).
  __device__ Tokens LoadTokens(const ScoreJob& job, int32_t t) const {
    const int32_t lane = threadIdx.x % 32;
    const std::byte* block = BlockOf(job, t);
    Tokens tokens;
    tokens.codes = reinterpret_cast<const uint4*>(block) + lane % 4 * 8 + lane / 4;
    if constexpr (kWords > 0) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        tokens.part[i] = kKeeps ? __ldcs(tokens.codes + 32 * i) : tokens.codes[32 * i];
      }
    }
    tokens.norms = LoadNorms(block);
    return tokens;
  }

  // H of the lane's head of quad r for its four tokens.
  __device__ void Differing(const HashSoftmaxShared* shared, const Query& query,
                            const Tokens& tokens, int32_t quad, int r, int32_t (&h)[4]) const {
    int32_t low[4] = {}, high[4] = {};  // products of tokens 0 and 1, 2 and 3
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
        const uint4 part = exists ? tokens.codes[32 * i] : uint4{};
        const uint32_t column = Column(shared, quad, i);
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

  // The sum over a quad's lanes of what each has for the lane's four tokens; the lane gets that of
  // its own token, t + lane.
  static __device__ float SumOfQuad(const float (&score)[4]) {
    const bool odd = threadIdx.x % 2 == 1, second = threadIdx.x / 2 % 2 == 1;
    const float a =
        (odd ? score[1] : score[0]) + __shfl_xor_sync(kFullMask, odd ? score[0] : score[1], 1);
    const float b =
        (odd ? score[3] : score[2]) + __shfl_xor_sync(kFullMask, odd ? score[2] : score[3], 1);
    return (second ? b : a) + __shfl_xor_sync(kFullMask, second ? a : b, 2);
  }

  // Maxima and sums of the warp's tokens for heads [first_head, first_head + kHeads).
  __device__ void SumExponentials(const ScoreJob& job, HashSoftmaxShared* shared, int32_t origin,
                                  int32_t first_head) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Query query = QueryOf(shared, first_head);
    float maximum[kQuads], sum[kQuads];
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      maximum[r] = -kLargestScore;
      sum[r] = 0;
    }
    Tokens next = {};
    if (origin < job.last) next = LoadTokens(job, origin);
    for (int32_t t = origin; t < job.last; t += kTeamThreads) {
      const Tokens tokens = next;
      if (t + kTeamThreads < job.last) next = LoadTokens(job, t + kTeamThreads);
      const bool whole = t >= job.first && t + kSelectBlock <= job.last;
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        int32_t h[4];
        Differing(shared, query, tokens, first_head + kQuad * r, r, h);
        if (kKeeps && whole) job.keys[t - job.first + lane] = Pack(h);
        float x[4];
        Estimate(query.agree[r], query.differ[r], h, tokens.norms, x);
        if (!whole) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int32_t token = t + lane / 4 * 4 + i;
            if (token < job.first || token >= job.last) x[i] = -INFINITY;
          }
        }
        const float higher = fmaxf(fmaxf(maximum[r], fmaxf(x[0], x[1])), fmaxf(x[2], x[3]));
        sum[r] = sum[r] * Exp2(maximum[r] - higher) + ((Exp2(x[0] - higher) + Exp2(x[1] - higher)) +
                                                       (Exp2(x[2] - higher) + Exp2(x[3] - higher)));
        maximum[r] = higher;
      }
    }
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      float highest = maximum[r];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(kFullMask, highest, step));
      }
      float total = sum[r] * Exp2(maximum[r] - highest);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        total += __shfl_xor_sync(kFullMask, total, step);
      }
      const int32_t head = first_head + kQuad * r + lane;
      if (lane < kQuad && head < job.shape.group) {
        shared->softmax.warp_maximum[warp][head] = highest;
        shared->softmax.warp_sum[warp][head] = total;
      }
    }
  }

  // Adds the shares of the lane's head of quad r to the scores of its four tokens.
  static __device__ void AddShares(const float (&x)[4], float maximum, float factor,
                                   float (&score)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] = fmaf(Exp2(x[i] - maximum), factor, score[i]);
  }

  // A block's scores, its codes read again.
  __device__ void ScoreBlock(const ScoreJob& job, const HashSoftmaxShared* shared, int32_t t,
                             float (&score)[4]) const {
    const Tokens tokens = LoadTokens(job, t);
    for (int32_t first_head = 0; first_head < job.shape.group; first_head += kHeads) {
      const Query query = QueryOf(shared, first_head);
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        int32_t h[4];
        Differing(shared, query, tokens, first_head + kQuad * r, r, h);
        float x[4];
        Estimate(query.agree[r], query.differ[r], h, tokens.norms, x);
        const int32_t head = first_head + kQuad * r + threadIdx.x % 4;
        const bool counts = head < job.shape.group;
        AddShares(x, counts ? shared->softmax.team_maximum[head] : 0,
                  counts ? shared->softmax.factor[head] : 0, score);
      }
    }
  }

  __device__ void Score(const ClusterTeam& team, const ScoreJob& job, std::byte* memory) const {
    auto* shared = reinterpret_cast<HashSoftmaxShared*>(memory);
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t group = job.shape.group;
    HashQueries(team, job, shared);
    const int32_t origin = job.first / kSelectBlock * kSelectBlock + warp * kSelectBlock;
    for (int32_t first_head = 0; first_head < group; first_head += kHeads) {
      SumExponentials(job, shared, origin, first_head);
    }
    CombineSoftmax(team, group, &shared->softmax);
    // Where H are kept, there is one quad.
    const bool counts = lane % 4 < group;
    const float factor = counts ? shared->softmax.factor[lane % 4] : 0;
    const float maximum = counts ? shared->softmax.team_maximum[lane % 4] : 0;
    const float per_bit = shared->factor[lane % 4];
    const float agree = per_bit * static_cast<float>(32 * words()), differ = -2 * per_bit;
    uint2 next = {};
    if (kKeeps && origin < job.last) next = LoadNorms(BlockOf(job, origin));
    for (int32_t t = origin; t < job.last; t += kTeamThreads) {
      float score[4] = {};
      const uint2 norms = next;
      if (kKeeps && t + kTeamThreads < job.last) next = LoadNorms(BlockOf(job, t + kTeamThreads));
      if (kKeeps && t >= job.first && t + kSelectBlock <= job.last) {
        int32_t h[4];
        Unpack(job.keys[t - job.first + lane], h);
        float x[4];
        Estimate(agree, differ, h, norms, x);
        AddShares(x, maximum, factor, score);
      } else {
        ScoreBlock(job, shared, t, score);
      }
      const float sum = SumOfQuad(score);
      if (t + lane >= job.first && t + lane < job.last) {
        job.keys[t + lane - job.first] = OrderedKey(sum);
      }
    }
  }
};

}  // namespace

void HashSoftmaxSelect(Stream& stream, const StepView& step, const LiteShape& shape,
                       const LiteLayer& layer, const HashFormat& format, const float* weights,
                       const SelectQuery& query, void* scratch) {
  LC_CHECK(format.bits >= 32 && format.bits % 32 == 0 && format.words() <= kMaxHashWords, "{} bits",
           format.bits);
  LC_CHECK(format.norms, "estimates of products want the keys' norms");
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxSoftmaxGroup, "a group of {}", shape.group);
  LC_CHECK(query.scale > 0, "scale {}", query.scale);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const auto words = static_cast<int32_t>(format.words());
  const auto launch = [&](auto fixed, auto quads) {
    const HashSoftmaxScorer<decltype(fixed)::value, decltype(quads)::value> scorer{words, weights};
    const size_t bytes = sizeof(HashSoftmaxShared) +
                         static_cast<size_t>(4 * PaddedGroup(shape.group, scorer.kHeads) * words);
    LaunchSelect(stream, step, shape, layer, query, scorer, bytes, scratch);
  };
  const auto with_quads = [&](auto fixed) {
    if (shape.group <= kQuad) {
      launch(fixed, std::integral_constant<int, 1>());
    } else {
      launch(fixed, std::integral_constant<int, 2>());
    }
  };
  switch (words) {
    case 4:
      return with_quads(std::integral_constant<int, 4>());
    case 8:
      return with_quads(std::integral_constant<int, 8>());
    default:
      return with_quads(std::integral_constant<int, 0>());
  }
}

}  // namespace litecache::ops::cuda
