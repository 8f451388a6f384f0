// flexgen attends every row, so its logits equal those of policy full, wherever its weights are.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lab/policies/flexgen/options.h"
#include "model/exact_policies.h"

namespace litecache::model {
namespace {

TEST_P(ExactPoliciesTest, FlexGenIsFull) {
  for (const bool f32 : {true, false}) {
    decoder_ = LoadDecoder(device(), Directory(name()), {.compute_f32 = f32});
    const kv::Layout layout = decoder_->config().kv_layout(decoder_->kv_dtype());
    const double bound = f32 ? 1e-4 : 2e-2;
    const auto full = Run(kv::CreateFullCache(device(), layout, kPlenty));
    KvOptions options;
    options.policy = "flexgen";
    for (const double share : {0.0, 0.5}) {
      options.settings.Of<FlexGenOptions>().device_share = share;
      SCOPED_TRACE(::testing::Message() << "share " << share << " f32 " << f32);
      ExpectEqual(Run(options), full, /*exactly=*/true, bound);
    }
    options.settings.Of<FlexGenOptions>().device_share = 0;
    options.batch_groups = 2;
    ExpectEqual(Run(options), full, /*exactly=*/true, bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExactPoliciesTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values("cpu", "cuda")),
                         TestName);

std::vector<std::pair<std::string, KvOptions>> FlexGen() {
  KvOptions options;
  options.policy = "flexgen";
  std::vector<std::pair<std::string, KvOptions>> policies = {{"flexgen", options}};
  options.batch_groups = 3;  // for three sequences
  policies.emplace_back("flexgen in groups", options);
  return policies;
}

TEST_P(OffloadedWeightsTest, LogitsOfModels) {
  if (!on_gpu()) GTEST_SKIP() << "weights travel to a GPU only";
  for (const bool f32 : {true, false}) {
    SCOPED_TRACE(::testing::Message() << "f32 " << f32);
    Compare(
        FlexGen(),
        [&](double on_device) {
          return LoadDecoder(device(), Directory(name()),
                             {.compute_f32 = f32, .weights_on_device = on_device});
        },
        f32 ? 1e-5 : 5e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadedWeightsTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values("cuda")),
                         TestName);

class OffloadedShapesTest : public OffloadedWeightsTest {};

TEST_P(OffloadedShapesTest, LogitsOfManyLayers) {
  const ModelConfig config = ModelConfig::FromShapeName(name());
  const uint64_t seed = testing::TestSeed();
  Compare(
      FlexGen(),
      [&](double on_device) {
        return RandomDecoder(device(), config, seed, {.weights_on_device = on_device});
      },
      5e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OffloadedShapesTest,
                         ::testing::Combine(::testing::Values("opt-125m", "qwen2.5-0.5b"),
                                            ::testing::Values("cuda")),
                         [](const auto& info) {
                           return std::get<0>(info.param).starts_with("opt") ? "opt" : "qwen2";
                         });

}  // namespace
}  // namespace litecache::model
