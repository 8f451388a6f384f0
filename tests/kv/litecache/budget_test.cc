// Budgets of policy litecache are hard, and exceeding one affects no other sequence.

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "kv/litecache/harness.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr Layout kLayout{
    .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};

KvOptions Options() {
  KvOptions options;
  options.hata_bits = 128;
  options.policy = "litecache";
  options.budget = KvBudget::Parse("20%");
  options.recent_tokens = 16;
  options.retriever = "quest";
  return options;
}

// Decodes until there is no memory left; returns the error.
std::string DecodeUntilFull(Harness& harness, const std::vector<Part>& parts) {
  try {
    for (int i = 0; i < 5000; ++i) harness.Step(parts);
  } catch (const CapacityError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no CapacityError";
  return "";
}

class TightTier : public ::testing::TestWithParam<std::string> {};

TEST_P(TightTier, EndsWithAnErrorThatNamesItAndLeavesOthersUntouched) {
  const bool device = GetParam() == "device";
  const auto plan = PlanLiteCache(kLayout, Options(), nullptr);
  const TierBytes need = 2 * plan->BytesFor(1000);
  const TierBytes budget = {.device = device ? need.device : kPlenty.device,
                            .host = device ? kPlenty.host : need.host};
  Harness harness(kLayout, Options(), nullptr, 0.1, testing::TestRandom()(), budget);
  const SequenceId a = harness.Create(), b = harness.Create();
  harness.Step({{a, 700, false}});
  harness.Step({{b, 700, false}});
  const std::string error = DecodeUntilFull(harness, {{a}, {b}});
  EXPECT_NE(error.find(device ? "device tier" : "host store"), std::string::npos) << error;
  EXPECT_NE(error.find("more needed"), std::string::npos) << error;
  // The promised length fitted.
  EXPECT_GE(harness.cache().Length(a), 1000);
  EXPECT_LE(harness.cache().GetStats().used.device, budget.device);
  EXPECT_LE(harness.cache().GetStats().used.host, budget.host);
  // One of them ends; the other continues with the right outputs.
  const int64_t length = harness.cache().Length(b);
  harness.Release(a);
  for (int i = 0; i < 50; ++i) harness.Step({{b}});
  EXPECT_EQ(harness.cache().Length(b), length + 50);
  harness.Release(b);
  EXPECT_EQ(harness.cache().GetStats().used, TierBytes{});
}

INSTANTIATE_TEST_SUITE_P(All, TightTier, ::testing::Values("device", "host"));

// Forks share pages until they write; the promised memory is sufficient whenever they are forked.
TEST(LiteCacheBudget, ForksFitIntoWhatTheyWerePromised) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 12; ++round) {
    KvOptions options = Options();
    if (round % 3 == 1) options.host_rows = "int8";
    const auto plan = PlanLiteCache(kLayout, options, nullptr);
    const int64_t prompt = 1 + static_cast<int64_t>(random() % 400);
    const int64_t decoded = static_cast<int64_t>(random() % 40);
    const int64_t more = 1 + static_cast<int64_t>(random() % 200);
    const int64_t shared = prompt + decoded;
    const TierBytes budget =
        plan->BytesFor(shared + more) + 3 * plan->ForkBytesFor(shared, shared + more);
    // There is no reference for a quantized store.
    CpuDevice device(1);
    const auto stream = device.CreateStream();
    const auto cache = plan->Create(device, budget);
    QuerySource source(kLayout, 0.1, random());
    const auto step = [&](const std::vector<Part>& parts) {
      const Step s = MakeStep(*cache, parts);
      StepInputs inputs = source.Draw(s);
      cache->BeginStep(s);
      RunLayers(*cache, device, *stream, s, inputs, 0.125f, kLayout.layers);
      cache->EndStep(s);
    };
    std::vector<Part> parts = {{cache->Create(), 1, true}};
    step({{parts[0].id, prompt, false}});
    for (int64_t i = 0; i < decoded; ++i) step(parts);
    for (int i = 0; i < 3; ++i) parts.push_back({cache->Fork(parts[0].id), 1, true});
    ASSERT_NO_THROW({
      for (int64_t i = 0; i < more; ++i) step(parts);
    }) << "prompt "
       << prompt << " decoded " << decoded << " more " << more;
    for (const Part& part : parts) cache->Release(part.id);
    EXPECT_EQ(cache->GetStats().used, TierBytes{});
  }
}

// A step that needs one byte more than a tier has is refused: the growth of all its tables is
// counted.
TEST(LiteCacheBudget, StepsAreRefusedToTheByte) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  for (int round = 0; round < 4; ++round) {
    KvOptions options = Options();
    options.retriever = round % 2 == 0 ? "quest" : "hata";
    options.host_rows = round % 4 < 2 ? "auto" : "int8";
    const int64_t prompt = 200 + static_cast<int64_t>(random() % 1500);
    SCOPED_TRACE(options.retriever + ", rows " + options.host_rows + ", prompt " +
                 std::to_string(prompt));
    const auto plan = PlanLiteCache(kLayout, options, nullptr);
    QuerySource source(kLayout, 0.1, random());
    // A prompt in one step, then decode steps; counts the steps that fitted.
    Stats stats;
    const auto steps = [&](const TierBytes& budget, int count) {
      const auto cache = plan->Create(device, budget);
      const SequenceId id = cache->Create();
      int done = 0;
      for (; done < count; ++done) {
        const Step s = MakeStep(*cache, {{id, done == 0 ? prompt : 1, done > 0}});
        StepInputs inputs = source.Draw(s);
        const TierBytes used = cache->GetStats().used;
        try {
          cache->BeginStep(s);
        } catch (const CapacityError&) {
          EXPECT_EQ(cache->GetStats().used, used);
          break;
        }
        RunLayers(*cache, device, *stream, s, inputs, 0.125f, kLayout.layers);
        cache->EndStep(s);
      }
      stats = cache->GetStats();
      return done;
    };
    ASSERT_EQ(steps(kPlenty, 1), 1);
    const TierBytes first = stats.peak;
    ASSERT_EQ(steps(kPlenty, 2), 2);
    const TierBytes second = stats.peak;
    EXPECT_EQ(steps(first, 1), 1);
    EXPECT_EQ(steps({.device = first.device - 1, .host = kPlenty.host}, 1), 0);
    EXPECT_EQ(steps({.device = kPlenty.device, .host = first.host - 1}, 1), 0);
    EXPECT_EQ(steps(second, 2), 2);
    if (second.device > first.device) {
      EXPECT_EQ(steps({.device = second.device - 1, .host = kPlenty.host}, 2), 1);
    }
  }
}

TEST(LiteCacheBudget, ARefusedStepChangesNothing) {
  const auto plan = PlanLiteCache(kLayout, Options(), nullptr);
  Harness harness(kLayout, Options(), nullptr, 0.1, testing::TestRandom()(), plan->BytesFor(600));
  const SequenceId a = harness.Create(), b = harness.Create();
  harness.Step({{a, 400, false}});
  for (int i = 0; i < 30; ++i) harness.Step({{a}});
  const TierBytes used = harness.cache().GetStats().used;
  EXPECT_THROW(harness.cache().BeginStep(MakeStep(harness.cache(), {{a}, {b, 5000, false}})),
               CapacityError);
  EXPECT_EQ(harness.cache().GetStats().used, used);
  for (int i = 0; i < 30; ++i) harness.Step({{a}});
}

// A prompt's chunk is begun and abandoned, then the sequence continues to decode: rows that were
// only in the ring are still there.
TEST(LiteCacheBudget, AnAbandonedPromptDoesNotSpoilDecoding) {
  KvOptions options = Options();
  options.budget = KvBudget::Parse("100%");
  for (int64_t layers = 0; layers <= kLayout.layers; ++layers) {
    Harness harness(kLayout, options, nullptr, 0.1, testing::TestRandom()());
    const SequenceId id = harness.Create();
    harness.Step({{id, 100, false}});
    for (int i = 0; i < 40; ++i) harness.Step({{id}});
    harness.Abandon({{id, 30, false}}, layers);
    for (int i = 0; i < 40; ++i) harness.Step({{id}});
  }
}

}  // namespace
}  // namespace litecache::kv
