#include <cuda_fp16.h>

#include "ops/select/hash_query.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kMaxPlanes = 8;
constexpr int kBlockLanes = kSelectBlock / kTokensAThread;  // lanes that share a block of tokens

// Compares the group's codes with a token's, as ops/select/hash_cpu.h does: a bit that agrees with
// the heads' majority differs only from the minority, so that four heads take two population counts
// per word.
template <int kWords>
struct HashSumShared {
  static constexpr int kMostWords = kWords > 0 ? kWords : kMaxHashWords;
  CoarseBins bins;
  int32_t base;
  uint32_t majority[kMostWords];
  uint32_t plane[kMaxPlanes][kMostWords];
};

// A lane's four tokens.
template <int kWords>
struct HashTokens {
  // The first word of the four tokens; the next word is kBlockLanes further.
  const uint4* codes = nullptr;
  uint4 word[kWords > 0 ? kWords : 1];
  uint2 norms;  // f16
};

// kWords: words of a code, 0: any number.
template <int kWords>
__device__ __forceinline__ HashTokens<kWords> LoadHashTokens(const StepSequence& s,
                                                             const RowTable& table, int32_t list,
                                                             int32_t token, int32_t words,
                                                             bool norms) {
  const int32_t block_bytes = kSelectBlock * (4 * words + (norms ? 2 : 0));
  const std::byte* block = CodesOf(s, table, list, token, block_bytes);
  const int32_t lane = threadIdx.x % kBlockLanes;
  HashTokens<kWords> tokens;
  tokens.codes = reinterpret_cast<const uint4*>(block) + lane;
  if constexpr (kWords > 0) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) tokens.word[w] = __ldcg(tokens.codes + w * kBlockLanes);
  }
  tokens.norms = {};
  if (norms) {
    tokens.norms = __ldcg(reinterpret_cast<const uint2*>(block + kSelectBlock * 4 * words) + lane);
  }
  return tokens;
}

template <int kWords>
__device__ void SplitQueries(const HashQueries& queries, int32_t group, int32_t words,
                             HashSumShared<kWords>& shared) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t shift = group % 2 == 0 ? 1 : 0;
  for (int32_t w = warp; w < words; w += kChainWarps) {
    int32_t set = 0;
    for (int32_t j = 0; j < group; ++j) set += queries.codes[j * words + w] >> lane & 1;
    const bool majority = 2 * set > group;
    const uint32_t majorities = __ballot_sync(kFullMask, majority);
    if (lane == 0) shared.majority[w] = majorities;
    const int32_t weight_of_bit = abs(group - 2 * set) >> shift;
    for (int32_t p = 0; p < kMaxPlanes; ++p) {
      const uint32_t plane = __ballot_sync(kFullMask, (weight_of_bit >> p & 1) != 0);
      if (lane == 0) shared.plane[p][w] = plane;
    }
    const int32_t base = __reduce_add_sync(kFullMask, majority ? group - set : set);
    if (lane == 0) atomicAdd(&shared.base, base);
  }
}

template <int kWords>
__global__ void __launch_bounds__(kChainThreads, 3)
    HashSumKernel(const __grid_constant__ StepView step,
                  const __grid_constant__ LiteCacheShape shape,
                  const __grid_constant__ LiteCacheLayer layer,
                  const __grid_constant__ SelectSource source, const __grid_constant__ Chain chain,
                  const int32_t words_of_format, const bool norms) {
  __shared__ WorkShared of_work;
  __shared__ HashSumShared<kWords> shared;
  const int32_t words = kWords > 0 ? kWords : words_of_format;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const RowTable& table = layer.metadata;
  // Loads a thread's tokens of an item of a pair, if they exist.
  const auto load = [&](int32_t pair, int32_t origin, int32_t end, int32_t item,
                        HashTokens<kWords>& tokens) {
    const int32_t token = origin + item * kChainItem + kTokensAThread * thread;
    if (token / kSelectBlock * kSelectBlock >= end) return false;
    const int32_t list = __ldcg(table.list_of_head + pair % shape.kv_heads);
    tokens = LoadHashTokens<kWords>(step.sequences[pair / shape.kv_heads], table, list, token,
                                    words, norms);
    return true;
  };
  // The first tokens are loaded while the queries are hashed.
  HashTokens<kWords> tokens = {};
  ChainWork work;
  SelectTarget target;
  const bool works = FindWorkEarly(step, shape, layer, source, chain, of_work, &work, &target);
  bool exists = false, loaded = works;
  if (works) exists = load(work.pair, OriginOf(target.begin), target.end, work.first, tokens);
  shared.bins.Clear();
  WaitForKernelBefore();
  LeaveShare(chain, works, work, target);
  if (!works) return;
  do {
    const int32_t pair = work.pair;
    if (!loaded) {
      const int4 state = __ldcg(reinterpret_cast<const int4*>(chain.PairOf(pair)));
      target.begin = state.y;
      target.end = state.z;
    }
    const int32_t begin = target.begin, end = target.end, origin = OriginOf(begin);
    const int32_t group = shape.group;
    __syncthreads();
    if (thread == 0) shared.base = 0;
    __syncthreads();
    SplitQueries(QueriesOf(chain, shape, pair), group, words, shared);
    __syncthreads();
    const int32_t planes = 32 - __clz(group >> (group % 2 == 0 ? 1 : 0));
    const int32_t double_it = group % 2 == 0 ? 1 : 0;
    const int32_t bits = 32 * words, best = group * bits - 2 * shared.base;
    const float inverse_bits = 1.0f / static_cast<float>(bits);
    uint32_t* coarse = chain.Of(pair, chain.layout.coarse);
    auto* keys = reinterpret_cast<uint4*>(chain.Of(pair, chain.layout.keys)) + thread;
    int added = 0;
    if (!loaded) exists = load(pair, origin, end, work.first, tokens);
    loaded = false;
    for (int32_t item = work.first; item < work.last; ++item) {
      const int32_t token = origin + item * kChainItem + kTokensAThread * thread;
      uint32_t differing[kTokensAThread] = {};
      if constexpr (kWords > 0) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const uint32_t majority = shared.majority[w];
          tokens.word[w].x ^= majority;
          tokens.word[w].y ^= majority;
          tokens.word[w].z ^= majority;
          tokens.word[w].w ^= majority;
        }
      }
      for (int32_t p = planes - 1; p >= 0; --p) {
#pragma unroll
        for (uint32_t& of_token : differing) of_token *= 2;
        const auto add = [&](const uint4& x, int32_t w) {
          const uint32_t plane = shared.plane[p][w];
          differing[0] += __popc(x.x & plane);
          differing[1] += __popc(x.y & plane);
          differing[2] += __popc(x.z & plane);
          differing[3] += __popc(x.w & plane);
        };
        if constexpr (kWords > 0) {
#pragma unroll
          for (int w = 0; w < kWords; ++w) add(tokens.word[w], w);
        } else if (exists) {
          for (int32_t w = 0; w < words; ++w) {
            const uint4 x = __ldcg(tokens.codes + w * kBlockLanes);
            const uint32_t majority = shared.majority[w];
            add({x.x ^ majority, x.y ^ majority, x.z ^ majority, x.w ^ majority}, w);
          }
        }
      }
      const uint2 four = tokens.norms;
      // The next item's tokens are loaded meanwhile.
      if (item + 1 < work.last) exists = load(pair, origin, end, item + 1, tokens);
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&four.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
      const float norm[kTokensAThread] = {low.x, low.y, high.x, high.y};
      uint32_t key[kTokensAThread];
#pragma unroll
      for (int i = 0; i < kTokensAThread; ++i) {
        const auto total = static_cast<int32_t>(differing[i] << double_it);
        key[i] = norms ? ChainKey(static_cast<float>(best - 2 * total) * inverse_bits * norm[i])
                       : KeyMap::kMostCount - static_cast<uint32_t>(total);
        if (token + i >= begin && token + i < end) {
          shared.bins.Add(chain.map.BinOf(key[i]));
        } else {
          key[i] = 0;
        }
      }
      keys[int64_t{item} * kChainThreads] = {key[0], key[1], key[2], key[3]};
      if (++added == CoarseBins::kItems) {
        shared.bins.Flush(coarse);
        added = 0;
      }
    }
    if (work.left == work.last - work.first) LetNextKernelStart();
    shared.bins.Flush(coarse);
  } while (work.Next(chain));
}

}  // namespace

void HashSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const HashFormat& format, const float* weights,
                const SelectQuery& query, void* scratch) {
  LC_CHECK(format.bits >= 32 && format.bits % 32 == 0 && format.words() <= kMaxHashWords, "{} bits",
           format.bits);
  LC_CHECK(shape.group >= 1 && shape.group < (1 << kMaxPlanes), "a group of {}", shape.group);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const auto words = static_cast<int32_t>(format.words());
  CudaStream& cuda = AsCuda(stream);
  const SelectSource source = SourceOf(shape, query);
  const Chain chain =
      MakeChain(step, shape,
                format.norms ? KeyMap::OfNumbers()
                             : KeyMap::OfCounts(shape.group * static_cast<int32_t>(format.bits)),
                scratch);
  const unsigned blocks = ChainBlocks(cuda, step, shape);
  BeginHashSelect(cuda, step, shape, layer, source, chain, words, weights);
  const auto score = [&](auto* kernel) {
    LaunchOverlapping(cuda, kernel, blocks, kChainThreads, 0, step, shape, layer, source, chain,
                      words, format.norms);
  };
  switch (words) {
    case 4:
      score(HashSumKernel<4>);
      break;
    case 8:
      score(HashSumKernel<8>);
      break;
    default:
      score(HashSumKernel<0>);
  }
  TakeBest(cuda, blocks, shape, layer, chain);
}

}  // namespace litecache::ops::cuda
