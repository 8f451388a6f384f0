// Caches of models in which some layers attend a window, and others the whole context by a policy.

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "expect_error.h"
#include "kv/heads/head_plan.h"
#include "kv/policy_oracle.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr TierBytes kPlenty{.device = uint64_t{1} << 30, .host = uint64_t{1} << 30};

bool All(int64_t, int64_t) { return true; }

// Three layers, of which the second attends everything.
Layout Mixed(DType dtype = DType::kF32) {
  return {.layers = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .dtype = dtype,
          .window = 20,
          .windowed = {true, false, true}};
}

KvOptions Policy(const std::string& name) {
  KvOptions options;
  options.policy = name;
  return options;
}

class WindowedLives : public DeviceTest {};

TEST_P(WindowedLives, SeeWindowsAndWhatThePolicyKeeps) {
  std::mt19937_64 random = testing::TestRandom();
  const bool cuda = device() == "cuda";
  for (int round = 0; round < 25 && !::testing::Test::HasFailure(); ++round) {
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 3);
    Layout layout{.layers = 1 + static_cast<int64_t>(random() % 5),
                  .q_heads = kv_heads * (1 + static_cast<int64_t>(random() % 4)),
                  .kv_heads = kv_heads,
                  .head_dim = Pick<int64_t>(random, {8, 24, 64}),
                  .dtype = Pick(random, {DType::kF32, DType::kBF16}),
                  .window = Pick<int64_t>(random, {1, 2, 15, 16, 17, 64, 200})};
    for (int64_t i = 0; i < layout.layers; ++i) layout.windowed.push_back(random() % 3 != 0);
    if (round % 3 == 0) {  // heads of two sizes
      layout.window_head_dim = layout.head_dim;
      layout.window_kv_heads = layout.kv_heads;
      layout.head_dim = Pick<int64_t>(random, {40, 320, 512});
      layout.kv_heads = Pick<int64_t>(random, {1, layout.kv_heads});
    }
    const float cap = Pick(random, {0.0f, 0.0f, 1.5f});
    KvOptions options = Policy(Pick<std::string>(random, {"full", "streaming", "litecache"}));
    const bool streaming = options.policy == "streaming";
    const int64_t sink = 3, recent = 33;
    if (streaming) options.sink_tokens = sink, options.recent_tokens = recent;
    if (options.policy == "litecache") options.budget = {.share = 1}, options.host_rows = "full";
    SCOPED_TRACE(::testing::Message()
                 << options.policy << ", layers " << layout.layers << ", " << layout.whole_layers()
                 << " of them whole, window " << layout.window << ", head_dim " << layout.head_dim
                 << " and " << layout.window_head_dim << ", cap " << cap);
    const auto plan = MakeCachePlan(layout, options, nullptr, device_type());
    PolicyOracle oracle(
        *plan,
        [&](int64_t token, int64_t seen) {
          return !streaming || seen < sink || seen > token - recent;
        },
        random(), kPlenty, std::nullopt, device());
    oracle.Cap(cap);
    oracle.RunLife(cuda ? 30 : 60, cuda ? 700 : 90);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, WindowedLives, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(WindowedCacheTest, CostsWhatItsPartsCost) {
  const Layout layout = Mixed();
  const auto plan = MakeCachePlan(layout, Policy("full"), nullptr);
  Layout whole = layout, window = layout;
  whole.layers = 1, window.layers = 2;
  for (Layout* part : {&whole, &window}) part->window = 0, part->windowed.clear();
  KvOptions last = Policy("streaming");
  last.sink_tokens = 0, last.recent_tokens = 20;
  for (const int64_t tokens : {1, 100, 5000}) {
    EXPECT_EQ(plan->BytesFor(tokens),
              MakeCachePlan(whole, Policy("full"), nullptr)->BytesFor(tokens) +
                  MakeCachePlan(window, last, nullptr)->BytesFor(tokens));
  }
  EXPECT_EQ(layout.token_bytes(), whole.token_bytes());
  EXPECT_NE(plan->DeviceHolds().find("the last 20 tokens' rows of 2 layers"), std::string::npos);

  const TierBytes budget = 2 * plan->BytesFor(500);
  CpuDevice device(1);
  const auto cache = plan->Create(device, budget);
  EXPECT_EQ(cache->policy(), "full");
  EXPECT_EQ(cache->GetStats().capacity, budget);
  EXPECT_TRUE(cache->SharesPrefixes());
  EXPECT_FALSE(cache->CutsPrefixes());
  EXPECT_TRUE(cache->CanTruncate());
}

// A policy's first layer is not the model's.
TEST(WindowedCacheTest, TheFirstLayerIsResidentOnlyIfItIsTheModels) {
  Layout layout = Mixed();
  EXPECT_EQ(MakeCachePlan(layout, Policy("litecache"), nullptr)->heads()->resident_count(), 0);
  layout.windowed = {false, true, false};
  EXPECT_EQ(MakeCachePlan(layout, Policy("litecache"), nullptr)->heads()->resident_count(),
            layout.kv_heads);
}

TEST(WindowedCacheTest, AllocatesNoMoreThanAsked) {
  const auto plan = MakeCachePlan(Mixed(), Policy("full"), nullptr);
  PolicyOracle oracle(*plan, All, testing::TestSeed(), 8 * plan->BytesFor(500));
  const SequenceId id = oracle.Create();
  oracle.cache().AllocateAhead(plan->BytesFor(500));
  const TierBytes ahead = oracle.cache().GetStats().provided;
  EXPECT_TRUE(plan->BytesFor(400).FitsIn(ahead));
  oracle.Step({{id, 300, false}});
  for (int i = 0; i < 100; ++i) oracle.Step({{id, 1, true}});
  EXPECT_EQ(oracle.cache().GetStats().provided, ahead);
}

TEST(WindowedCacheTest, ARefusedStepCanBeBegunAgain) {
  const auto plan = MakeCachePlan(Mixed(), Policy("full"), nullptr);
  PolicyOracle oracle(*plan, All, testing::TestSeed(), plan->BytesFor(500));
  const SequenceId first = oracle.Create(), second = oracle.Create();
  oracle.Step({{first, 400, false}});
  const Step step{{{second, 0, 4000, 0, false}}, 4000, 0};
  for (int i = 0; i < 2; ++i) EXPECT_THROW(oracle.cache().BeginStep(step), CapacityError);
  oracle.Step({{first, 1, true}});
  oracle.Release(first);
  oracle.Step({{second, 400, false}});
  oracle.Step({{second, 1, true}});
}

TEST(WindowedCacheTest, PredictionsAreRefused) {
  for (const char* prefetch : {"1", "on", "-,0,1"}) {
    KvOptions options = Policy("litecache");
    options.prefetch = prefetch;
    EXPECT_ERROR(MakeCachePlan(Mixed(), options, nullptr), Unsupported, "prefetch", "windows");
  }
  for (const char* prefetch : {"auto", "off", "0"}) {
    KvOptions options = Policy("litecache");
    options.prefetch = prefetch;
    EXPECT_FALSE(MakeCachePlan(Mixed(), options, nullptr)->prefetches());
  }
}

}  // namespace
}  // namespace litecache::kv
