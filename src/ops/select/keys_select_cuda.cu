// Selects the top rows by keys in a few bits (keys_softmax.cuh).
#include "ops/select/chain_softmax_kernels.cuh"
#include "ops/select/keys_softmax.cuh"

namespace litecache::ops::cuda {

void KeysSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const KeysFormat& format, const float* rotation,
                const SelectQuery& query, void* scratch) {
  LC_CHECK(shape.head_dim == format.head_dim && (format.bits == 2 || format.bits == 4),
           "head_dim {}, {} bits of {}", shape.head_dim, format.bits, format.head_dim);
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxSoftmaxGroup, "a group of {}", shape.group);
  LC_CHECK(query.scale > 0, "scale {}", query.scale);
  static_assert(kSelectBlock == kKeysBlock);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  CudaStream& cuda = AsCuda(stream);
  const SelectSource source = SourceOf(shape, query);
  const Chain chain = MakeChain(step, shape, KeyMap::OfShares(), scratch);
  unsigned blocks = 0;
  const KeysLayout layout = LayoutOf(format);
  BeginKeysSelect(cuda, step, shape, layer, source, chain, layout, rotation);
  const auto score = [&](auto bits, auto dim) {
    constexpr int kBits = decltype(bits)::value, kDim = decltype(dim)::value;
    const auto launch = [&](auto quads) {
      using Softmax = KeysSoftmax<kBits, kDim, decltype(quads)::value>;
      blocks = ChainBlocks(cuda, step, shape, Softmax::kBlocksAnSm);
      LaunchChainSoftmax<Softmax>(cuda, step, shape, layer, source, chain, blocks, layout.words);
    };
    if (shape.group <= kQuad) {
      launch(std::integral_constant<int, 1>());
    } else {
      launch(std::integral_constant<int, 2>());
    }
  };
  const auto with_dim = [&](auto bits) {
    if (shape.head_dim <= 64) {
      score(bits, std::integral_constant<int, 64>());
    } else if (shape.head_dim <= 128) {
      score(bits, std::integral_constant<int, 128>());
    } else if (shape.head_dim <= 256) {
      score(bits, std::integral_constant<int, 256>());
    } else {
      score(bits, std::integral_constant<int, 512>());
    }
  };
  if (format.bits == 4) {
    with_dim(std::integral_constant<int, 4>());
  } else {
    with_dim(std::integral_constant<int, 2>());
  }
  TakeBest(cuda, blocks, shape, layer, chain);
}

}  // namespace litecache::ops::cuda
