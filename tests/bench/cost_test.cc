// Floors: the minimum that a pass must compute, counted token by token and from published parameter
// counts.
#include "bench/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "model/config.h"

namespace litecache::bench {
namespace {

using model::ModelConfig;

TEST(Cost, DecodeMultipliesEveryWeightOfAMatrixOnce) {
  struct Published {
    const char* shape;
    double parameters, no_matrix;  // embedding, positions, norms and biases; experts: the active
  };
  const Published models[] = {
      {"llama3.1-8b", 8030261248, 128256.0 * 4096 + (2 * 32 + 1) * 4096},
      // The embedding is also the logits' matrix. Biases: q, k, v, o, both feed-forward matrices.
      {"opt-6.7b", 6658473984,
       2050.0 * 4096 + 32 * (4 * 4096 + 16384 + 4096) + 32 * 4 * 4096 + 2 * 4096},
      // Of 128 experts with three matrices of 768 x 2048 eight.
      {"qwen3-30b-a3b", 30532122624 - 48.0 * 120 * 3 * 768 * 2048,
       151936.0 * 2048 + (2 * 48 + 1) * 2048 + 48 * 2 * 128},
      // Of 60 experts four, beside one that all rows use; biases of q, k and v.
      {"qwen1.5-moe-a2.7b", 14315784192 - 24.0 * 56 * 3 * 1408 * 2048,
       151936.0 * 2048 + (2 * 24 + 1) * 2048 + 24 * 3 * 2048}};
  for (const Published& m : models) {
    const ModelConfig c = ModelConfig::FromShapeName(m.shape);
    for (const int64_t batch : {1, 5}) {
      const Cost cost = DecodeCost(c, batch, 1000, 0, 30, 64);
      EXPECT_EQ(cost.flops, static_cast<double>(batch) * 2 * (m.parameters - m.no_matrix))
          << m.shape;
      EXPECT_EQ(cost.bytes, 1030);
    }
  }
}

// 4 operations per key, query head and channel in every layer: two for q.k, two for the sum.
TEST(Cost, DecodeAttendsItsRows) {
  const ModelConfig c = ModelConfig::FromShapeName("llama3.1-8b");
  constexpr uint64_t kTokenBytes = uint64_t{2} * 32 * 8 * 128 * 2;  // K and V, layers, heads, bf16
  const Cost none = DecodeCost(c, 3, 1000, 0, 0, kTokenBytes);
  const Cost some = DecodeCost(c, 3, 1000, 700 * kTokenBytes, 0, kTokenBytes);
  EXPECT_EQ(some.flops - none.flops, 700.0 * 32 * 32 * 128 * 4);
  EXPECT_EQ(some.bytes - none.bytes, 700.0 * kTokenBytes);
}

// The last layer computes keys and values of all tokens, and everything else only for the last.
TEST(Cost, PrefillTokenByToken) {
  for (const char* shape : {"llama3.1-8b", "opt-6.7b", "gemma3-1b", "mixtral-8x7b"}) {
    const ModelConfig c = ModelConfig::FromShapeName(shape);
    const auto d = [](int64_t x) { return static_cast<double>(x); };
    const double q = d(c.hidden) * d(c.q_heads) * d(c.head_dim);
    const double k = d(c.hidden) * d(c.kv_heads) * d(c.head_dim);
    const int matrices = c.family == model::Family::kOpt ? 2 : 3;  // up, down, and a gate if any
    // Mixtral has two of eight experts for each token, and a router.
    const bool experts = c.family == model::Family::kMixtral;
    const double feed_forward = (experts ? 2 : 1) * matrices * d(c.hidden) * d(c.intermediate) +
                                (experts ? 8 : 0) * d(c.hidden);
    for (const int64_t tokens : {1, 2, 37, 700}) {
      double want = 0;
      for (int64_t layer = 0; layer < c.layers; ++layer) {
        for (int64_t t = 0; t < tokens; ++t) {
          want += 2 * (k + k);
          if (layer + 1 == c.layers && t + 1 < tokens) continue;
          want += 2 * (q + q + feed_forward);  // q and o
          const int64_t keys = c.has_window(layer) ? std::min(t + 1, c.window) : t + 1;
          want += 4 * d(c.q_heads) * d(c.head_dim) * d(keys);
        }
      }
      want += 2 * d(c.vocab) * d(c.hidden);
      const Cost cost = PrefillCost(c, tokens, 1234);
      EXPECT_EQ(cost.flops, want) << shape << ", " << tokens << " tokens";
      EXPECT_EQ(cost.bytes, 1234);
    }
  }
}

}  // namespace
}  // namespace litecache::bench
