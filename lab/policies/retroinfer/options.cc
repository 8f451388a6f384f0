#include "lab/policies/retroinfer/options.h"

#include <array>

#include "base/option_makers.h"

namespace litecache {

std::span<const Option<RetroInferOptions>> RetroInferOptionTable() {
  using namespace option_rows;  // NOLINT(google-build-using-namespace): functions that make rows
  using O = RetroInferOptions;
  static const auto rows = std::to_array<Option<O>>({
      Row("cluster_tokens", &O::cluster_tokens, Tokens(1, 1 << 20),
          "Tokens of a cluster, on average", {.flag = "--cluster"}),
      Row("segment_tokens", &O::segment_tokens, Tokens(8, 1 << 30),
          "Tokens of a prompt that are clustered together", {.flag = "--segment"}),
      Row("update_tokens", &O::update_tokens, Tokens(8, 1 << 20),
          "Generated tokens that become clusters together; shorter prompts are not clustered",
          {.flag = "--update"}),
      Row("iterations", &O::iterations, Whole(1, 1000), "Iterations of k-means"),
      Row("retrieval", &O::retrieval, Share(), "Share of the clusters that are attended exactly"),
      Row("estimation", &O::estimation, Share(),
          "Share of the clusters that are estimated by their centroids"),
      Row("block_tokens", &O::block_tokens, Tokens(1, 1 << 20),
          "Rows that the block cache keeps and moves together", {.flag = "--block"}),
      Row("cache", &O::cache, Real(0, 1000),
          "Blocks cached on the device, as a multiple of those that a step retrieves"),
  });
  return rows;
}

}  // namespace litecache
