// Selects the top rows by the softmax of estimated products (hash_softmax.cuh), in two kernels over
// all candidates: the first computes the heads' maxima and sums, the second the keys of the scores.
#include "ops/select/hash_softmax.cuh"
#include "ops/select/hash_softmax_select_cuda.h"

namespace litecache::ops::cuda {
namespace {

template <int kWords, int kQuads>
__global__ void __launch_bounds__(kChainThreads, 3)
    ExponentialsKernel(const __grid_constant__ StepView step,
                       const __grid_constant__ LiteCacheShape shape,
                       const __grid_constant__ LiteCacheLayer layer,
                       const __grid_constant__ SelectSource source,
                       const __grid_constant__ Chain chain, const int32_t words) {
  using Softmax = HashSoftmax<kWords, kQuads>;
  extern __shared__ uint32_t softmax_words[];
  __shared__ WorkShared shared;
  __shared__ const std::byte* located[kChainWarps][32];
  Softmax softmax{step, shape, layer, chain, words};
  softmax.located = located[threadIdx.x / 32];
  softmax.parts = PartsOf(softmax_words, softmax.padded(), softmax.words());
  // The first tokens are loaded while the queries are hashed.
  typename Softmax::Tokens tokens[Softmax::kBlocks];
  ChainWork work;
  SelectTarget target;
  const bool works = FindWorkEarly(step, shape, layer, source, chain, shared, &work, &target);
  bool loaded = works;
  if (works) {
    softmax.pair = work.pair;
    softmax.begin = target.begin;
    softmax.end = target.end;
    softmax.Locate(work.first);
    softmax.LoadItem(tokens);
  }
  WaitForKernelBefore();
  LeaveShare(chain, works, work, target);
  if (!works) return;
  do {
    if (!loaded) {
      const int4 state = __ldcg(reinterpret_cast<const int4*>(chain.PairOf(work.pair)));
      softmax.pair = work.pair;
      softmax.begin = state.y;
      softmax.end = state.z;
    }
    __syncthreads();
    softmax.ReadQueries();
    __syncthreads();
    for (int32_t first_head = 0; first_head < shape.group; first_head += Softmax::kHeads) {
      softmax.SumExponentials(work, first_head, loaded && first_head == 0, tokens);
    }
    loaded = false;
    if (work.left == work.last - work.first) LetNextKernelStart();
    __syncthreads();
    softmax.LeavePartials(work);
  } while (work.Next(chain));
}

template <int kWords, int kQuads>
__global__ void __launch_bounds__(kChainThreads, 3)
    SharesKernel(const __grid_constant__ StepView step,
                 const __grid_constant__ LiteCacheShape shape,
                 const __grid_constant__ LiteCacheLayer layer, const __grid_constant__ Chain chain,
                 const int32_t words) {
  using Softmax = HashSoftmax<kWords, kQuads>;
  constexpr int kBlocks = Softmax::kBlocks;
  extern __shared__ uint32_t softmax_words[];
  __shared__ CoarseBins bins;
  const int32_t lane = threadIdx.x % 32;
  Softmax softmax{step, shape, layer, chain, words};
  softmax.parts = PartsOf(softmax_words, softmax.padded(), softmax.words());
  const bool keeps = softmax.Keeps();
  bins.Clear();
  WaitForKernelBefore();
  ChainWork work;
  int4 state;
  if (!TakeShare(chain, &work, &state)) return;
  softmax.pair = work.pair;
  do {
    if (work.pair != softmax.pair) {
      state = __ldcg(reinterpret_cast<const int4*>(chain.PairOf(work.pair)));
    }
    softmax.pair = work.pair;
    softmax.begin = state.y;
    softmax.end = state.z;
    const int32_t begin = softmax.begin, end = softmax.end, origin = softmax.origin();
    const auto* norms_of_all =
        reinterpret_cast<const uint2*>(chain.Of(work.pair, chain.layout.norms));
    uint32_t kept[kBlocks][kQuads];
    uint2 norms[kBlocks];
    const auto load = [&](int32_t item, int b) {
      const int32_t index = softmax.IndexOf(item, b);
      if (origin + index < end) {
        norms[b] = __ldcg(norms_of_all + (index + lane) / 4);
#pragma unroll
        for (int r = 0; r < kQuads; ++r) kept[b][r] = __ldcg(softmax.KeptOf(r) + index + lane);
      }
    };
    if (keeps) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) load(work.first, b);
    }
    __syncthreads();
    softmax.ReadQueries();
    softmax.CombinePartials(state.x);
    __syncthreads();
    uint32_t* coarse = chain.Of(work.pair, chain.layout.coarse);
    uint32_t* keys = chain.Of(work.pair, chain.layout.keys);
    int added = 0;
    for (int32_t item = work.first; item < work.last; ++item) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int32_t index = softmax.IndexOf(item, b), token = origin + index + lane;
        if (origin + index >= end) {
          keys[index + lane] = 0;
          continue;
        }
        float score[4] = {};
        if (keeps) {
          softmax.ScoreKept(kept[b], norms[b], score);
          if (item + 1 < work.last) load(item + 1, b);
        } else {
          softmax.ScoreAgain(origin + index, score);
        }
        const uint32_t key = ChainKey(Softmax::SumOfQuad(score));
        const bool is_candidate = token >= begin && token < end;
        keys[index + lane] = is_candidate ? key : 0;
        if (is_candidate) bins.Add(chain.map.BinOf(key));
      }
      if (++added == CoarseBins::kItems) {
        bins.Flush(coarse);
        added = 0;
      }
    }
    if (work.left == work.last - work.first) LetNextKernelStart();
    bins.Flush(coarse);
  } while (work.Next(chain));
}

}  // namespace

void HashSoftmaxSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const HashFormat& format, const float* weights,
                       const SelectQuery& query, void* scratch) {
  LC_CHECK(format.bits >= 32 && format.bits % 32 == 0 && format.words() <= kMaxHashWords, "{} bits",
           format.bits);
  LC_CHECK(format.norms, "estimates of products want the keys' norms");
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxSoftmaxGroup, "a group of {}", shape.group);
  LC_CHECK(query.scale > 0, "scale {}", query.scale);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const auto words = static_cast<int32_t>(format.words());
  CudaStream& cuda = AsCuda(stream);
  const SelectSource source = SourceOf(shape, query);
  const Chain chain = MakeChain(step, shape, KeyMap::OfShares(), scratch);
  const unsigned blocks = ChainBlocks(cuda, step, shape);
  BeginHashSelect(cuda, step, shape, layer, source, chain, words, weights);
  const auto score = [&](auto fixed, auto quads) {
    constexpr int kWords = decltype(fixed)::value, kQuads = decltype(quads)::value;
    const int32_t padded = PaddedGroup(shape.group, kQuad * kQuads);
    const auto bytes = static_cast<size_t>(4 * padded * (words + kSoftmaxWords));
    LaunchOverlapping(cuda, ExponentialsKernel<kWords, kQuads>, blocks, kChainThreads, bytes, step,
                      shape, layer, source, chain, words);
    LaunchOverlapping(cuda, SharesKernel<kWords, kQuads>, blocks, kChainThreads, bytes, step, shape,
                      layer, chain, words);
  };
  const auto with_quads = [&](auto fixed) {
    if (shape.group <= kQuad) {
      score(fixed, std::integral_constant<int, 1>());
    } else {
      score(fixed, std::integral_constant<int, 2>());
    }
  };
  switch (words) {
    case 4:
      with_quads(std::integral_constant<int, 4>());
      break;
    case 8:
      with_quads(std::integral_constant<int, 8>());
      break;
    default:
      with_quads(std::integral_constant<int, 0>());
  }
  TakeBest(cuda, blocks, shape, layer, chain);
}

}  // namespace litecache::ops::cuda
