// Tokens that are taken back: what random lives of policies (policy_oracle.h) do not show.
#include "kv/truncation.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "expect_error.h"
#include "kv/mixed/windowed_layout.h"
#include "kv/policy_oracle.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr TierBytes kPlenty{.device = uint64_t{1} << 30, .host = uint64_t{1} << 30};

KvOptions Policy(const std::string& name) {
  KvOptions options;
  options.policy = name;
  if (name == "streaming") options.sink_tokens = 3, options.recent_tokens = 33;
  return options;
}

TEST(Truncation, OfPolicyFullInRandomLives) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 8 && !::testing::Test::HasFailure(); ++round) {
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 2);
    const Layout layout{
        .layers = 1 + static_cast<int64_t>(random() % 2),
        .q_heads = kv_heads,
        .kv_heads = kv_heads,
        .head_dim = Pick<int64_t>(random, {24, 256}),  // the latter's pages are short
        .dtype = Pick(random, {DType::kF32, DType::kBF16})};
    const auto plan = MakeCachePlan(layout, Policy("full"), nullptr);
    PolicyOracle oracle(
        *plan, [](int64_t, int64_t) { return true; }, random(), kPlenty);
    oracle.RunLife(30, 90);
  }
}

// Decode rows, chunks and drafted chunks: the last 64 tokens can be taken back, whichever stored
// them; 66 behind a window cannot.
TEST(Truncation, OfTheLast64TokensHoweverTheyWereStored) {
  const std::vector<int64_t> lengths = {1, 2, 10, 40, 64, 65, 66, 130};
  for (const char* policy : {"full", "streaming", "kvpr"}) {
    SCOPED_TRACE(policy);
    const auto plan = MakeCachePlan(WindowedLayout(), Policy(policy), nullptr);
    const bool streaming = std::string(policy) == "streaming";
    const auto sees = [&](int64_t token, int64_t seen) {
      return !streaming || seen < 3 || seen > token - 33;
    };
    for (const int64_t rows : lengths) {
      for (const int kind : {0, 1, 2}) {
        PolicyOracle oracle(*plan, sees, testing::TestSeed() + static_cast<uint64_t>(rows),
                            kPlenty);
        const SequenceId id = oracle.Create();
        oracle.Step({{id, 301, false}});
        if (kind == 0) {
          for (int64_t i = 0; i < rows; ++i) oracle.Step({{id, 1, true}});
        } else {
          oracle.Step({{id, rows, false, /*drafted=*/kind == 2}});
        }
        const SequenceId fork = oracle.Fork(id);
        const auto& limited = dynamic_cast<const LimitedTruncation&>(oracle.cache());
        EXPECT_EQ(limited.ShortestLength(id), 301 + rows - 65);
        EXPECT_ERROR(oracle.cache().Truncate(id, 301 + rows - 66), InvalidArgument, "at most 65");
        EXPECT_EQ(oracle.cache().Length(id), 301 + rows);
        oracle.TakeBack(id, std::min(rows, Cache::kMostDrafted));
        for (int i = 0; i < 3; ++i) oracle.Step({{id, 1, true}, {fork, 1, true}});
        oracle.Step({{id, 40, false}, {fork, 5, false, true}});
      }
    }
  }
}

// What a failed attempt overwrote is not needed by the step that follows it.
TEST(Truncation, AfterFailedSteps) {
  const auto plan = MakeCachePlan(WindowedLayout(), Policy("full"), nullptr);
  PolicyOracle oracle(
      *plan, [](int64_t, int64_t) { return true; }, testing::TestSeed(), kPlenty);
  const SequenceId id = oracle.Create();
  oracle.Step({{id, 100, false}});
  for (const int64_t rows : {65, 64, 3}) {
    oracle.Step({{id, rows, false, true}}, /*fail_after=*/2);
    oracle.TakeBack(id, rows - 1);
    oracle.Step({{id, 1, true}});
  }
}

// TakeBack() compares the memory in use with that of the shorter sequence.
TEST(Truncation, GivesBackTheSlotsOfLongerContexts) {
  const Layout layout{.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 256};
  KvOptions options = Policy("litecache");
  options.budget = {.share = 1}, options.host_rows = "full";
  const auto plan = MakeCachePlan(layout, options, nullptr);
  PolicyOracle oracle(
      *plan, [](int64_t, int64_t) { return true; }, testing::TestSeed(), kPlenty);
  const SequenceId id = oracle.Create();
  oracle.Step({{id, 150, false}});
  for (const bool forked : {false, true}) {
    // A page has slots of some 30 rows.
    for (int i = 0; i < 64; ++i) oracle.Step({{id, 1, true}});
    const std::optional<SequenceId> fork =
        forked ? std::make_optional(oracle.Fork(id)) : std::nullopt;
    oracle.TakeBack(id, 64);
    if (fork) oracle.Step({{*fork, 1, true}});
    for (int i = 0; i < 3; ++i) oracle.Step({{id, 1, true}});
  }
}

TEST(Truncation, ToNothingFreesAllMemory) {
  CpuDevice device(1);
  for (const char* policy : {"full", "streaming", "kvpr"}) {
    SCOPED_TRACE(policy);
    const auto cache =
        MakeCachePlan(WindowedLayout(), Policy(policy), nullptr)->Create(device, kPlenty);
    const SequenceId id = cache->Create();
    for (int i = 0; i < 2; ++i) {
      const Step step{{{id, 0, 30, 0, false}}, 30, 0};
      cache->BeginStep(step);
      cache->EndStep(step);
      EXPECT_NE(cache->GetStats().used, TierBytes{});
      cache->Truncate(id, 0);
      EXPECT_EQ(cache->GetStats().used, TierBytes{});
    }
  }
}

}  // namespace
}  // namespace litecache::kv
