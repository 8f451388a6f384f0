#include "lab/policies/pqcache/options.h"

#include <array>

#include "base/option_makers.h"

namespace litecache {

std::span<const Option<PqCacheOptions>> PqCacheOptionTable() {
  using namespace option_rows;  // NOLINT(google-build-using-namespace): functions that make rows
  using O = PqCacheOptions;
  static const auto rows = std::to_array<Option<O>>({
      Row("sink_tokens", &O::sink_tokens, Tokens(0, 1 << 20),
          "The first tokens, which are always attended", {.flag = "--sink"}),
      Row("share", &O::share, Share(),
          "Rows attended, as a share of the prompt: half of them selected, half recent"),
      Row("subspaces", &O::subspaces, Whole(1, 64), "Parts of a key that are quantized separately"),
      Row("bits", &O::bits, Whole(1, 8), "Bits of a part's code"),
      Row("iterations", &O::iterations, Whole(0, 1 << 20),
          "Iterations of k-means; 0: 3 to 300, as many as the prefill of a layer leaves time for"),
      Row("cache_tokens", &O::cache_tokens, Tokens(0, 1 << 30),
          "Rows of a layer that the block cache keeps", {.flag = "--cache"}),
      Row("block_tokens", &O::block_tokens, Tokens(1, 1 << 20),
          "Rows that enter the block cache together", {.flag = "--block"}),
  });
  return rows;
}

}  // namespace litecache
