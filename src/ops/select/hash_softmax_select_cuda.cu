// Selects the top rows by the softmax of products estimated from hash codes (hash_softmax.cuh).
#include "ops/select/chain_softmax_kernels.cuh"
#include "ops/select/hash_softmax.cuh"
#include "ops/select/hash_softmax_select_cuda.h"

namespace litecache::ops::cuda {

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
    LaunchChainSoftmax<HashSoftmax<kWords, kQuads>>(cuda, step, shape, layer, source, chain, blocks,
                                                    words);
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
