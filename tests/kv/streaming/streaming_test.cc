// Policy streaming against plain attention over the first and the last tokens.

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "expect_error.h"
#include "kv/policy_oracle.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

KvOptions Options(int64_t sink, int64_t recent) {
  KvOptions options;
  options.policy = "streaming";
  options.sink_tokens = sink;
  options.recent_tokens = recent;
  return options;
}

constexpr TierBytes kPlenty{.device = uint64_t{1} << 30, .host = 0};

class StreamingLives : public DeviceTest {};

TEST_P(StreamingLives, SeeSinkAndWindow) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 40 && !::testing::Test::HasFailure(); ++round) {
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 3);
    const Layout layout{.layers = 1 + static_cast<int64_t>(random() % 3),
                        .q_heads = kv_heads * (1 + static_cast<int64_t>(random() % 4)),
                        .kv_heads = kv_heads,
                        .head_dim = device() == "cuda" ? Pick<int64_t>(random, {8, 24, 34, 64, 128})
                                                       : Pick<int64_t>(random, {8, 24, 33, 64}),
                        .dtype = Pick(random, {DType::kF32, DType::kBF16})};
    const int64_t sink = Pick<int64_t>(random, {0, 1, 4, 20});
    const int64_t recent = Pick<int64_t>(random, {1, 2, 7, 15, 16, 17, 64});
    SCOPED_TRACE(::testing::Message() << "sink " << sink << " recent " << recent << " KV heads "
                                      << kv_heads << " head_dim " << layout.head_dim);
    const auto plan = MakeCachePlan(layout, Options(sink, recent), nullptr, device_type());
    PolicyOracle oracle(
        *plan, [&](int64_t token, int64_t seen) { return seen < sink || seen > token - recent; },
        random(), kPlenty, std::nullopt, device());
    // A GPU processes a prompt in blocks of 512.
    oracle.RunLife(device() == "cuda" ? 30 : 60, device() == "cuda" ? 700 : 90);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, StreamingLives, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(StreamingTest, MemoryDoesNotGrowWithTheContext) {
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .dtype = DType::kBF16};
  const auto plan = MakeCachePlan(layout, Options(4, 32), nullptr);
  const TierBytes bytes = plan->BytesFor(1);
  EXPECT_EQ(plan->BytesFor(1 << 20), bytes);
  EXPECT_EQ(plan->BytesFor(0), TierBytes{});
  EXPECT_EQ(bytes.host, 0u);
  // sink, window and the most drafted tokens, twice.
  EXPECT_EQ(bytes.device, 2u * 2 * 2 * (4 + 32 + 64) * 64);
  PolicyOracle oracle(
      *plan, [](int64_t token, int64_t seen) { return seen < 4 || seen > token - 32; }, 1, bytes);
  const SequenceId id = oracle.Create();
  for (int i = 0; i < 3; ++i) {
    oracle.Step({{id, 301, false}});
    EXPECT_EQ(oracle.cache().GetStats().used.device, bytes.device / 2);
    EXPECT_EQ(oracle.cache().GetStats().peak.device, bytes.device / (i == 0 ? 2 : 1));
    for (int j = 0; j < 50; ++j) oracle.Step({{id, 1, true}});
  }
  EXPECT_EQ(oracle.cache().Length(id), 3 * 351);
}

TEST(StreamingTest, TheBudgetIsHardAndARefusedStepChangesNothing) {
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};
  const auto plan = MakeCachePlan(layout, Options(4, 32), nullptr);
  PolicyOracle oracle(
      *plan, [](int64_t token, int64_t seen) { return seen < 4 || seen > token - 32; },
      testing::TestSeed(), plan->BytesFor(1));
  const SequenceId first = oracle.Create();
  oracle.Step({{first, 100, false}});
  const SequenceId fork = oracle.Fork(first);
  oracle.Step({{first, 1, true}});  // the fork keeps the page, and this writes to a copy
  const SequenceId third = oracle.Create();
  for (const SequenceId id : {third, first}) {
    const Step step{{{id, 0, 5, oracle.cache().Length(id), false}}, 5, 0};
    EXPECT_ERROR(oracle.cache().BeginStep(step), CapacityError, "sink and recent rows", "0 free");
  }
  oracle.Step({{first, 1, true}, {fork, 1, true}});
  // A page with two owners is copied by the first one that writes, for which there is no memory.
  const SequenceId shares = oracle.Fork(fork);
  const Step writes{{{shares, 0, 1, oracle.cache().Length(shares), true}}, 1, 1};
  EXPECT_ERROR(oracle.cache().BeginStep(writes), CapacityError, "sink and recent rows", "0 free");
  oracle.Release(shares);
  oracle.Step({{first, 1, true}, {fork, 1, true}});
  oracle.Release(fork);
  oracle.Step({{third, 3, false}});
}

}  // namespace
}  // namespace litecache::kv
