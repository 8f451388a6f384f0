#include "engine/replicas/routes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "test_seed.h"

namespace litecache::engine {
namespace {

using Prompt = std::vector<int32_t>;
using Loads = std::vector<int64_t>;

constexpr int64_t kMany = 1 << 20;

Prompt Random(int64_t tokens, uint64_t salt) {
  std::mt19937_64 random = testing::TestRandom(salt);
  Prompt prompt(static_cast<size_t>(tokens));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 50000);
  return prompt;
}
Prompt Behind(Prompt beginning, const Prompt& rest) {
  beginning.insert(beginning.end(), rest.begin(), rest.end());
  return beginning;
}

TEST(RoutesTest, ShortPromptsTakeTurns) {
  Routes routes(3, kMany);
  std::vector<int> chosen;
  for (uint64_t i = 0; i < 6; ++i) chosen.push_back(routes.Choose(Random(60, i), Loads{0, 0, 0}));
  EXPECT_EQ(chosen, (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(RoutesTest, IdleReplicasDivideNewPromptsTheSameWayAfterARestart) {
  Routes routes(3, kMany), restarted(3, kMany);
  std::vector<int> counts(3);
  for (uint64_t i = 0; i < 300; ++i) {
    const int replica = routes.Choose(Random(100, i), Loads{0, 0, 0});
    ++counts[static_cast<size_t>(replica)];
    EXPECT_EQ(restarted.Choose(Random(100 + static_cast<int64_t>(i), i), Loads{0, 0, 0}), replica);
  }
  for (const int count : counts) EXPECT_GT(count, 50);  // 100 expected, deviation 8
}

TEST(RoutesTest, TheFewestRequestsWinWithoutAKnownBeginning) {
  Routes routes(3, kMany);
  EXPECT_EQ(routes.Choose(Random(1000, 1), Loads{4, 2, 3}), 1);
  EXPECT_EQ(routes.Choose(Random(1000, 2), Loads{4, 5, 3}), 2);
}

TEST(RoutesTest, AConversationStaysWhereItBegan) {
  Routes routes(4, kMany);
  Prompt prompt = Random(700, 1);
  const int first = routes.Choose(prompt, Loads{0, 0, 0, 0});
  for (uint64_t turn = 2; turn < 6; ++turn) {
    prompt = Behind(prompt, Random(150, turn));
    EXPECT_EQ(routes.Choose(prompt, Loads{0, 0, 0, 0}), first);
    EXPECT_NE(routes.Choose(Random(700, 100 + turn), Loads{1, 1, 1, 1}), -1);
  }
}

// What is known is worth as many tokens as it has: 1,024 of them weigh as much as two requests.
TEST(RoutesTest, ABusyReplicaIsLeftOnceComputingAgainTakesLess) {
  const Prompt prompt = Random(2 * Routes::kTokensOfRequest, 1);
  for (const int64_t more : {1, 3}) {
    Routes routes(2, kMany);
    ASSERT_EQ(routes.Choose(prompt, Loads{0, 9}), 0);
    EXPECT_EQ(routes.Choose(prompt, Loads{more, 0}), more == 1 ? 0 : 1);
    // The other one has kept it by then.
    if (more == 3) {
      EXPECT_EQ(routes.Choose(prompt, Loads{1, 0}), 1);
    }
  }
}

TEST(RoutesTest, OnlyTheCommonBeginningCounts) {
  Routes routes(2, kMany);
  const Prompt common = Random(640, 1);
  ASSERT_EQ(routes.Choose(Behind(common, Random(6400, 2)), Loads{0, 9}), 0);
  ASSERT_EQ(routes.Choose(Behind(common, Random(64, 3)), Loads{9, 0}), 1);
  // Both know the beginning, and only one of them the rest.
  EXPECT_EQ(routes.Choose(Behind(common, Random(6400, 2)), Loads{0, 0}), 0);
  EXPECT_EQ(routes.Choose(Behind(common, Random(64, 3)), Loads{0, 0}), 1);
  // The same rest behind another beginning is known to neither.
  EXPECT_EQ(routes.Choose(Behind(Random(640, 4), Random(64, 3)), Loads{0, 1}), 0);
}

TEST(RoutesTest, WhatWasUsedLongAgoIsForgotten) {
  const Prompt old = Random(640, 1), used = Random(640, 2);
  Routes routes(2, 4 * 640);
  ASSERT_EQ(routes.Choose(old, Loads{0, 9}), 0);
  ASSERT_EQ(routes.Choose(used, Loads{0, 9}), 0);
  for (uint64_t i = 10; i < 20; ++i) {
    routes.Choose(Random(640, i), Loads{0, 9});
    ASSERT_EQ(routes.Choose(used, Loads{1, 0}), 0);
  }
  EXPECT_EQ(routes.Choose(old, Loads{1, 0}), 1);
}

TEST(RoutesTest, NothingIsKnownWherePrefixesAreNotKept) {
  Routes routes(2, 0);
  const Prompt prompt = Random(6400, 1);
  EXPECT_EQ(routes.Choose(prompt, Loads{0, 0}), 0);
  EXPECT_EQ(routes.Choose(prompt, Loads{0, 0}), 1);
}

}  // namespace
}  // namespace litecache::engine
