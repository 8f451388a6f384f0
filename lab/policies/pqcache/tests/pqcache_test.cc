// Policy pqcache against the published algorithm in double precision, step by step: codes,
// selection, block cache, output; its budgets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "lab/policies/pqcache/lfu.h"
#include "lab/policies/pqcache/options.h"
#include "lab/policies/pqcache/tests/pq_life.h"
#include "lab/tests/random_trace.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::lab {
namespace {

using pqcache::Diagnosis;
using ::testing::UnorderedElementsAreArray;

KvOptions Options() {
  KvOptions options;
  options.policy = "pqcache";
  options.settings.Of<PqCacheOptions>().iterations = 4;
  return options;
}

class PqCacheLives : public DeviceTest {};

TEST_P(PqCacheLives, AgreeStepByStep) {
  std::mt19937_64 random = testing::TestRandom();
  int64_t indexed = 0, dense = 0, left_out = 0, hits = 0, misses = 0;
  const int rounds = testing::Rounds(24);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const int64_t group = 1 + static_cast<int64_t>(random() % 4);
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 3);
    const Layout layout{.layers = 1 + static_cast<int64_t>(random() % 3),
                        .q_heads = group * kv_heads,
                        .kv_heads = kv_heads,
                        .head_dim = Pick<int64_t>(random, {16, 24, 40, 64}),
                        .dtype = Pick(random, {DType::kF32, DType::kF32, DType::kBF16})};
    KvOptions options = Options();
    PqCacheOptions& o = options.settings.Of<PqCacheOptions>();
    o.sink_tokens = Pick<int64_t>(random, {0, 5, 32});
    o.share = Pick(random, {0.1, 0.3, 1.0, 0.001});
    o.subspaces = Pick<int64_t>(random, {1, 2, 2, 4});
    o.bits = Pick(random, {1, 3, 5, 6});
    o.iterations = Pick<int64_t>(random, {0, 3, 5});
    o.cache_tokens = Pick<int64_t>(random, {0, 16, 48, 4096});
    o.block_tokens = Pick<int64_t>(random, {1, 8, 16});
    options.measure_recall = device() == "cpu" && random() % 3 == 0;
    if (device() == "cuda") {
      options.transfer = Pick<std::string>(random, {"auto", "auto", "auto", "cpu-push", "copy"});
      options.transfer_threads = 1 + static_cast<int>(random() % 4);
    }
    const bool fails = random() % 2 == 0;
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": sink " << o.sink_tokens << " share " << o.share
                 << " subspaces " << o.subspaces << " bits " << o.bits << " iterations "
                 << o.iterations << " cache " << o.cache_tokens << " block " << o.block_tokens
                 << " layers " << layout.layers << " KV heads " << kv_heads << " group " << group
                 << " head_dim " << layout.head_dim << " " << Name(layout.dtype) << " fails "
                 << fails << " transfer " << options.transfer);
    const auto trace =
        round % 5 == 0 ? std::make_shared<const Trace>(RandomTrace(random)) : nullptr;
    PqLife life(layout, options, random(), {.device = device(), .trace = trace});
    // A repeated step finds the blocks that its first attempt admitted.
    life.CheckCacheContents(!fails);
    life.RunRandom(testing::Rounds(60), testing::Tokens(1 + static_cast<int32_t>(random() % 250)),
                   60, fails);
    indexed += life.indexed();
    dense += life.dense();
    left_out += life.left_out();
    hits += life.hits();
    misses += life.misses();
  }
  if (rounds < 24) return;  // too few rounds for all cases to occur
  // All cases occurred.
  EXPECT_GT(indexed, dense / 20);
  EXPECT_GT(dense, indexed / 50);
  EXPECT_GT(left_out, indexed / 20);
  EXPECT_GT(hits, misses / 50);
  EXPECT_GT(misses, hits / 50);
}

TEST_P(PqCacheLives, HundredsOfStepsOverManyPages) {
  std::mt19937_64 random = testing::TestRandom(1);
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  KvOptions options = Options();
  options.settings.Of<PqCacheOptions>().cache_tokens = 256;
  options.settings.Of<PqCacheOptions>().block_tokens = 32;
  PqLife life(layout, options, random(), {.device = device()});
  const SequenceId a = life.Create(), b = life.Create();
  life.Step({{a, 600, false}});
  life.Step({{b, 333, false}, {a}});
  for (int i = 0; i < 300 && !HasFailure(); ++i) life.Step({{a}, {b}});
  const Stats stats = life.cache().GetStats();
  uint64_t selected = 0, moved = 0;
  for (const HeadCounters& head : life.cache().Heads()) {
    selected += head.rows_selected;
    moved += head.rows_moved;
  }
  EXPECT_EQ(stats.miss.rows, moved);
  EXPECT_EQ(stats.lookups, selected);
  EXPECT_EQ(stats.hits, selected - moved);
  EXPECT_GT(stats.hits, 0u);
  // Whole blocks of both heads; in each step of a sequence no more than a layer's cache holds.
  EXPECT_GT(stats.admit.rows, 0u);
  EXPECT_EQ(stats.admit.rows % (2 * 32), 0u);
  EXPECT_LE(stats.admit.rows, 601u * 2 * (2 * 256));
  EXPECT_EQ(stats.admit.bytes, stats.admit.rows * 2 * 64 * sizeof(float));
  EXPECT_EQ(stats.stream.rows, 0u);
}

TEST_P(PqCacheLives, LeaveARefusedStepAsItWas) {
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  std::mt19937_64 random = testing::TestRandom(2);
  const auto plan = MakeCachePlan(layout, Options(), nullptr, device_type());
  Life::ExpectRefusalsLeaveNothing(*plan, device(), {300}, [&](const Life::Settings& s) {
    return std::make_unique<PqLife>(layout, Options(), random(), s);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, PqCacheLives, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(PqCache, BlocksGoByTheirUsesAndThenByTheLastOfThem) {
  std::mt19937_64 random = testing::TestRandom(3);
  for (int round = 0; round < 50; ++round) {
    size_t capacity = random() % 20;
    const uint64_t keys = 1 + random() % 40;
    pqcache::Lfu lfu;
    PlainLfu plain;
    for (int i = 0; i < 1000; ++i) {
      if (random() % 300 == 0) capacity += random() % 5;
      lfu.SetCapacity(static_cast<int64_t>(capacity));
      const auto key = static_cast<int64_t>(random() % keys);
      const bool had = plain.Has(key);
      plain.Use(key, capacity);
      bool fresh = false;
      const int64_t slot = lfu.Use(key, &fresh);
      ASSERT_EQ(slot, lfu.SlotOf(key));
      ASSERT_EQ(fresh, !had && capacity > 0);
      std::set<int64_t> slots;
      for (int64_t other = 0; other < static_cast<int64_t>(keys); ++other) {
        ASSERT_EQ(lfu.SlotOf(other) >= 0, plain.Has(other)) << "key " << other << " after " << key;
        if (!plain.Has(other)) continue;
        ASSERT_LT(lfu.SlotOf(other), static_cast<int64_t>(capacity));
        ASSERT_TRUE(slots.insert(lfu.SlotOf(other)).second);
      }
    }
  }
}

TEST(PqCache, SettingsThatTheHeadsDoNotAllowAreNamed) {
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  const auto error = [&](const PqCacheOptions& changed) -> std::string {
    KvOptions options = Options();
    options.settings.Of<PqCacheOptions>() = changed;
    try {
      MakeCachePlan(layout, options, nullptr);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error({}), "");
  EXPECT_NE(error({.subspaces = 3}).find("pqcache.subspaces = 3"), std::string::npos);
  EXPECT_NE(error({.bits = 9}).find("pqcache.bits: '9'"), std::string::npos);
  EXPECT_NE(error({.share = 1.5}).find("pqcache.share"), std::string::npos);
  EXPECT_NE(error({.block_tokens = 0}).find("pqcache.block_tokens"), std::string::npos);
}

}  // namespace
}  // namespace litecache::lab
