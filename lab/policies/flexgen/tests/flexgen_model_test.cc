// flexgen attends every row, so its logits equal those of policy full, wherever its weights are.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lab/policies/flexgen/options.h"
#include "model/exact_policies.h"
#include "model/offloaded_weights.h"

namespace litecache::model {
namespace {

TEST_P(ExactPoliciesTest, FlexGenIsFull) {
  for (const bool f32 : {true, false}) {
    decoder_ = LoadDecoder(device(), Directory(name()), {.dtype = InF32(f32)});
    const double bound = f32 ? 1e-4 : 2e-2;
    const auto full = Run(KvOptions{});
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

}  // namespace

std::vector<std::pair<std::string, KvOptions>> OffloadedPolicies() {
  KvOptions options;
  options.policy = "flexgen";
  std::vector<std::pair<std::string, KvOptions>> policies = {{"flexgen", options}};
  options.batch_groups = 3;  // for three sequences
  policies.emplace_back("flexgen in groups", options);
  return policies;
}

}  // namespace litecache::model
