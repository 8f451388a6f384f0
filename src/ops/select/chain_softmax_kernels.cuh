// The two kernels of a selection by softmax (chain_softmax.cuh), for any estimator.
#pragma once

#include "ops/select/chain_softmax.cuh"

namespace litecache::ops::cuda {

template <class Softmax>
__global__ void __launch_bounds__(kChainThreads, Softmax::kBlocksAnSm)
    ExponentialsKernel(const __grid_constant__ StepView step,
                       const __grid_constant__ LiteCacheShape shape,
                       const __grid_constant__ LiteCacheLayer layer,
                       const __grid_constant__ SelectSource source,
                       const __grid_constant__ Chain chain, const int32_t words) {
  extern __shared__ uint32_t softmax_words[];
  __shared__ WorkShared shared;
  __shared__ const std::byte* located[kChainWarps][32];
  Softmax softmax{step, shape, layer, chain, source.cap, words};
  softmax.located = located[threadIdx.x / 32];
  softmax.parts = PartsOf(softmax_words, softmax.padded(), softmax.row(), Softmax::kFloats);
  // The first tokens are loaded while the queries are hashed.
  typename Softmax::Tokens tokens[Softmax::kHeld];
  ChainWork work;
  SelectTarget target;
  const bool works = FindWorkEarly(step, shape, layer, source, chain, shared, &work, &target);
  bool loaded = works;
  if (works) {
    softmax.pair = work.pair;
    softmax.begin = target.begin;
    softmax.end = target.end;
    softmax.Locate(work.first);
    LoadFirst(softmax, tokens);
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
      SumExponentials(softmax, work, first_head, loaded && first_head == 0, tokens);
    }
    loaded = false;
    if (work.left == work.last - work.first) LetNextKernelStart();
    __syncthreads();
    softmax.LeavePartials(work);
  } while (work.Next(chain));
}

template <class Softmax>
__global__ void __launch_bounds__(kChainThreads, Softmax::kBlocksAnSm)
    SharesKernel(const __grid_constant__ StepView step,
                 const __grid_constant__ LiteCacheShape shape,
                 const __grid_constant__ LiteCacheLayer layer, const __grid_constant__ Chain chain,
                 const __grid_constant__ SoftCapOf cap, const int32_t words) {
  constexpr int kBlocks = Softmax::kBlocks;
  extern __shared__ uint32_t softmax_words[];
  __shared__ CoarseBins bins;
  __shared__ const std::byte* located[Softmax::kLocatesAgain ? kChainWarps : 1][32];
  const int32_t lane = threadIdx.x % 32;
  Softmax softmax{step, shape, layer, chain, cap, words};
  softmax.parts = PartsOf(softmax_words, softmax.padded(), softmax.row(), Softmax::kFloats);
  const bool keeps = softmax.Keeps();
  if constexpr (Softmax::kLocatesAgain) softmax.located = located[threadIdx.x / 32];
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
    typename Softmax::Kept kept[kBlocks];
    const auto load = [&](int32_t item, int b) {
      const int32_t index = softmax.IndexOf(item, b);
      if (origin + index < end) kept[b] = softmax.LoadKept(index);
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
      const int32_t slot = (item - work.first) % Softmax::kLocated * kBlocks;
      if constexpr (Softmax::kLocatesAgain) {
        if (slot == 0) softmax.Locate(item);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int32_t index = softmax.IndexOf(item, b), token = origin + index + lane;
        if (origin + index >= end) {
          keys[index + lane] = 0;
          continue;
        }
        float score[4] = {};
        if (keeps) {
          softmax.ScoreKept(kept[b], index, score);
          if (item + 1 < work.last) load(item + 1, b);
        } else {
          softmax.ScoreAgain(origin + index, slot + b, score);
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

// Launches both kernels, and with a budget by need the one that lowers k.
template <class Softmax>
void LaunchChainSoftmax(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                        const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                        unsigned blocks, int32_t words) {
  const size_t bytes = SoftmaxBytes(PaddedGroup(shape.group, Softmax::kHeads),
                                    Softmax::RowOf(words), Softmax::kFloats);
  LaunchOverlapping(stream, ExponentialsKernel<Softmax>, blocks, kChainThreads, bytes, step, shape,
                    layer, source, chain, words);
  LaunchOverlapping(stream, SharesKernel<Softmax>, blocks, kChainThreads, bytes, step, shape, layer,
                    chain, source.cap, words);
  LimitToNeed(stream, shape, layer, chain);
}

}  // namespace litecache::ops::cuda
