// Caches whose memory has been allocated ahead.
#include <gtest/gtest.h>

#include <string>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/device_test.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv {
namespace {

class Provided : public DeviceTest {};

TEST_P(Provided, EveryPolicyTakesWhatItIsTold) {
  const Machine machine = OpenMachine(device(), 2);
  const Layout layout{.layers = 4,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .head_dim = 64,
                      .dtype = DType::kBF16,
                      .hidden = 256};
  for (const std::string_view policy : KvPolicies()) {
    SCOPED_TRACE(policy);
    KvOptions options;
    options.policy = policy;
    const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
    const TierBytes budget = plan->BytesFor(100000);
    const auto cache = plan->Create(machine.compute(), budget);
    EXPECT_EQ(cache->GetStats().provided, TierBytes{});
    const TierBytes wanted = plan->BytesFor(50000);
    cache->AllocateAhead(wanted);
    const TierBytes provided = cache->GetStats().provided;
    EXPECT_GE(provided.device, wanted.device);
    EXPECT_GE(provided.host, wanted.host);
    EXPECT_LE(provided.device, budget.device);
    EXPECT_LE(provided.host, budget.host);
    cache->AllocateAhead(plan->BytesFor(1000));
    EXPECT_EQ(cache->GetStats().provided, provided) << "it was there";
    EXPECT_EQ(cache->GetStats().used, TierBytes{});
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Provided, ::testing::Values("cpu", "cuda"), DeviceName());

}  // namespace
}  // namespace litecache::kv
