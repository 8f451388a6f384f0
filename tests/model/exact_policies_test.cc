// Policies that attend every row, wherever it is stored, give the logits of policy full, for every
// family and the shipped model.

#include "model/exact_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "expect_error.h"
#include "kv/offload/shape.h"
#include "model/offloaded_weights.h"

namespace litecache::model {
namespace {

TEST_P(ExactPoliciesTest, LogitsAreThoseOfFull) {
  for (const bool f32 : {true, false}) {
    decoder_ = LoadDecoder(device(), Directory(name()), {.dtype = InF32(f32)});
    const kv::Layout layout = decoder_->config().kv_layout(decoder_->kv_dtype());
    // A recomputed row is part of a product of many rows rather than of one, whose sums round
    // differently; with bf16 rows that is sometimes one bf16 step.
    const double bound = f32 ? 1e-4 : 2e-2;
    const auto full = Run(KvOptions{});
    KvOptions options;
    options.policy = "kvpr";
    const auto heads = static_cast<uint64_t>(layout.whole_layers() * layout.kv_heads);
    for (const int64_t split : {int64_t{0}, int64_t{1}, kLong / 2, kLong, int64_t{1} << 20}) {
      for (const bool chunked : {true, false}) {
        options.kvpr.split = split;
        options.kvpr.chunked = chunked;
        options.batch_groups = split == 1 ? 1 : 2;
        SCOPED_TRACE(::testing::Message()
                     << "split " << split << " chunked " << chunked << " f32 " << f32);
        ExpectEqual(Run(options), full, /*exactly=*/split == 0, bound);
        uint64_t recomputed = 0;
        for (int64_t i = 0; i < kSteps; ++i) {
          recomputed +=
              static_cast<uint64_t>(std::min(split, kLong + i) + std::min(split, kShort + i));
        }
        EXPECT_EQ(stats_.rows_recomputed, recomputed * heads);
      }
    }
  }
}

TEST_P(ExactPoliciesTest, AWholeBudgetIsFullAttention) {
  decoder_ = LoadDecoder(device(), Directory(name()), {.dtype = DType::kF32});
  const auto full = Run(KvOptions{});
  KvOptions options;
  options.policy = "litecache";
  options.budget = {.share = 1};
  ExpectEqual(Run(options), full, /*exactly=*/false, 1e-4);
}

// If a step has fewer layers than a GPU's cache has buffers, a transfer ahead waits for rows that
// the previous step has only just stored. Only a decoder shows this, because it does not wait for
// layers.
TEST(ExactPoliciesModels, OneHasFewerLayersThanBuffers) {
  int64_t least = kv::offload::Shape::kGpuBuffers;
  for (const std::string& name : Models()) {
    least = std::min(least, ModelConfig::FromModel(Directory(name)).layers);
  }
  EXPECT_LT(least, kv::offload::Shape::kGpuBuffers);
}

// On a CPU nothing is elsewhere.
TEST(ExactPoliciesModels, CpusHaveAllWeights) {
  CpuDevice cpu(1);
  for (const std::string& name : Models()) {
    EXPECT_ERROR(LoadDecoder(cpu, Directory(name), {.weights_on_device = 0.5}), InvalidArgument,
                 "weights_on_device = 0.5");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExactPoliciesTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values("cpu", "cuda")),
                         TestName);

}  // namespace

// Policies that copy rows while weights are copied, and policy full.
std::vector<std::pair<std::string, KvOptions>> OffloadedPolicies() {
  std::vector<std::pair<std::string, KvOptions>> policies(1, {"full", {}});
  for (const int64_t split : {int64_t{0}, ExactPoliciesTest::kLong / 2, int64_t{1} << 20}) {
    KvOptions options;
    options.policy = "kvpr";
    options.kvpr.split = split;
    policies.emplace_back("kvpr " + std::to_string(split), options);
    options.batch_groups = 3;  // for three sequences
    policies.emplace_back(policies.back().first + " in groups", options);
    options.kvpr.chunked = false;
    if (split > 0) policies.emplace_back(policies.back().first + " eq. 11", options);
  }
  KvOptions options;
  options.policy = "litecache";
  // Policies that need a layer's queries while earlier layers compute.
  for (const char* prefetch : {"on", "2"}) {
    options.prefetch = prefetch;
    policies.emplace_back(options.policy + " " + prefetch, options);
  }
  return policies;
}

}  // namespace litecache::model
