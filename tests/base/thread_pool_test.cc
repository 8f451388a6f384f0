#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test_seed.h"

namespace litecache {
namespace {

TEST(ThreadPool, EveryItemExactlyOnce) {
  auto random = testing::TestRandom();
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 200; ++round) {
      const int64_t count = static_cast<int64_t>(random() % 1000);
      const int64_t grain = 1 + static_cast<int64_t>(random() % 50);
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (auto& value : seen) ASSERT_EQ(value.load(), 1);
    }
  }
}

TEST(ThreadPool, RunReachesSleepingWorkers) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::vector<std::atomic<int>> calls(4);
    pool.Run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    for (auto& value : calls) ASSERT_EQ(value.load(), 1);
  }
}

// Loops so short that workers are late for many of them, or just in time for the next one: more
// threads than cores, both kinds of calls, and pauses in which workers fall asleep.
TEST(ThreadPool, LateWorkersDoNotJoinFinishedTasks) {
  auto random = testing::TestRandom(1);
  ThreadPool pool(9);
  for (int round = 0; round < 20000; ++round) {
    if (round % 4000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // Freed after the round: the sanitizers would report a worker that still used it.
    std::vector<int> values(2 + random() % 20);
    if (round % 50 == 0) {
      std::atomic<int> calls{0};
      pool.Run([&](int) { ++calls; });
      ASSERT_EQ(calls.load(), 9);
    }
    pool.ParallelFor(static_cast<int64_t>(values.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
    });
    for (int value : values) ASSERT_EQ(value, 1);
  }
}

// Pools destroyed while workers wake for a loop that has ended without them.
TEST(ThreadPool, EndsWhileWorkersAreLate) {
  for (int round = 0; round < 500; ++round) {
    std::atomic<int> calls{0};
    {
      ThreadPool pool(3);
      pool.Run([&](int) { ++calls; });  // all are awake now
      pool.ParallelFor(
          2, 1, [&](int64_t begin, int64_t end, int) { calls += static_cast<int>(end - begin); });
    }
    ASSERT_EQ(calls.load(), 5);
  }
}

TEST(ThreadPool, AnExceptionOfAnyWorkerReachesTheCaller) {
  ThreadPool pool(3);
  for (int bad = 0; bad < 3; ++bad) {
    EXPECT_THROW(pool.Run([&](int worker) {
      if (worker == bad) throw std::runtime_error("worker");
    }),
                 std::runtime_error);
    std::atomic<int> calls{0};
    pool.Run([&](int) { ++calls; });  // the pool still works
    EXPECT_EQ(calls.load(), 3);
  }
}

}  // namespace
}  // namespace litecache
