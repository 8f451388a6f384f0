#include "kv/api/policy_registry.h"

#include <gmock/gmock.h>

#include "expect_error.h"
#include "kv/heads/profile.h"

namespace litecache::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A single test, because registered policies stay registered.
TEST(PolicyRegistry, HasTheProductsPoliciesAndThoseRegistered) {
  const Layout layout{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  KvOptions options;
  options.policy = "mine";
  EXPECT_THAT(KvPolicies(), ElementsAre("full", "litecache", "kvpr", "streaming"));
  EXPECT_ERROR(MakeCachePlan(layout, options, nullptr), InvalidArgument, "'mine'",
               "full, litecache, kvpr, streaming", "litecache-lab");
  EXPECT_EQ(WhyNoPolicy("full"), "");
  EXPECT_TRUE(FindPolicy("litecache").uses_profile);
  EXPECT_FALSE(FindPolicy("streaming").uses_profile);

  RegisterPolicy({.name = "mine",
                  .summary = "as full",
                  .plan = [](const Layout& wanted, const KvOptions&, std::shared_ptr<const Profile>,
                             DeviceType device) { return PlanFullCache(wanted, device); }});
  EXPECT_THAT(KvPolicies(), ElementsAre("full", "litecache", "kvpr", "streaming", "mine"));
  EXPECT_EQ(FindPolicy("mine").summary, "as full");
  const auto plan = MakeCachePlan(layout, options, nullptr);
  EXPECT_EQ(plan->BytesFor(100), PlanFullCache(layout)->BytesFor(100));
  // A program with registered policies is not referred to another one.
  EXPECT_THAT(WhyNoPolicy("yours"), HasSubstr("mine"));
  EXPECT_THAT(WhyNoPolicy("yours"), Not(HasSubstr("litecache-lab")));
}

}  // namespace
}  // namespace litecache::kv
