#include "base/background_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "test_seed.h"

namespace litecache {
namespace {

TEST(BackgroundThreads, WaitingMeansDone) {
  auto random = testing::TestRandom();
  for (const int threads : {1, 2, 5}) {
    BackgroundThreads background(threads);
    EXPECT_EQ(background.size(), threads);
    for (int round = 0; round < 100; ++round) {
      const auto group = std::make_shared<TaskGroup>();
      std::vector<int> results(random() % 20);
      for (int& result : results) background.Submit(group, [&result] { ++result; });
      group->Wait();
      EXPECT_TRUE(group->done());
      for (const int result : results) ASSERT_EQ(result, 1);
    }
  }
}

TEST(BackgroundThreads, OneThreadKeepsTheOrderAndTheCallerGoesOn) {
  BackgroundThreads background(1);
  const auto group = std::make_shared<TaskGroup>();
  std::atomic<bool> go{false};
  std::vector<int> order;
  background.Submit(group, [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
  for (int i = 0; i < 10; ++i) background.Submit(group, [&order, i] { order.push_back(i); });
  EXPECT_FALSE(group->done());  // Submit() did not wait for it
  go = true;
  group->Wait();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(BackgroundThreads, AnExceptionReachesTheWaiter) {
  BackgroundThreads background(2);
  const auto good = std::make_shared<TaskGroup>(), bad = std::make_shared<TaskGroup>();
  background.Submit(bad, [] { throw std::runtime_error("task"); });
  background.Submit(good, [] {});
  EXPECT_THROW(bad->Wait(), std::runtime_error);
  bad->Wait();  // the exception is thrown only once
  good->Wait();
}

TEST(BackgroundThreads, EndsAfterAllTasks) {
  std::atomic<int> ran{0};
  const auto group = std::make_shared<TaskGroup>();
  {
    BackgroundThreads background(2);
    for (int i = 0; i < 50; ++i) background.Submit(group, [&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace litecache
