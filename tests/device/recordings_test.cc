#include "device/cuda/recordings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/recording_key.h"
#include "test_seed.h"

namespace litecache {
namespace {

using Clock = std::chrono::steady_clock;

// The fake graphs that exist.
std::multiset<CUgraphExec_st*> alive;
CUgraphExec_st* NewGraph() {
  static uintptr_t last = 0;
  auto* graph = reinterpret_cast<CUgraphExec_st*>(++last);
  alive.insert(graph);
  return graph;
}
void Destroy(CUgraphExec_st* graph) { EXPECT_EQ(alive.erase(graph), 1u); }

// Runs a step as CudaStream::Run does; returns whether it was replayed.
bool RunStep(Recordings& recordings, uint64_t key, Clock::time_point begun = Clock::now()) {
  Recordings::Step* const step = recordings.Use(key);
  if (step == nullptr) return false;
  EXPECT_EQ(step->key, key);
  if (step->graph == nullptr) step->graph = NewGraph();
  EXPECT_EQ(alive.count(step->graph), 1u);
  recordings.Launched(*step, begun);
  return true;
}

TEST(Recordings, DropsTheLeastRecentlyUsed) {
  Recordings recordings(3, Destroy);
  for (const uint64_t key : {1, 2, 3}) EXPECT_FALSE(RunStep(recordings, key));
  for (const uint64_t key : {1, 2, 3}) EXPECT_TRUE(RunStep(recordings, key));
  recordings.Finished(recordings.launches());
  EXPECT_TRUE(RunStep(recordings, 1));
  recordings.Finished(recordings.launches());
  EXPECT_FALSE(RunStep(recordings, 4));  // drops 2
  EXPECT_EQ(alive.size(), 2u);
  EXPECT_TRUE(RunStep(recordings, 1));
  EXPECT_TRUE(RunStep(recordings, 3));
  EXPECT_FALSE(RunStep(recordings, 2));
  recordings.Clear();
  EXPECT_TRUE(alive.empty());
  EXPECT_EQ(recordings.size(), 0u);
}

// Launches step 1 and waits for it; it took `seconds` by the GPU's clock.
void Take(Recordings& recordings, double seconds) {
  EXPECT_TRUE(RunStep(recordings, 1));
  EXPECT_NE(recordings.pending(), nullptr);
  recordings.Finished(recordings.launches(), seconds);
  EXPECT_EQ(recordings.pending(), nullptr);
  EXPECT_FALSE(recordings.Remaining().has_value());
}

// The expected duration of a launch of step 1 that begins at once; it is not waited for.
std::optional<double> Expected(Recordings& recordings) {
  const auto before = Clock::now();
  EXPECT_TRUE(RunStep(recordings, 1));
  std::optional<double> left = recordings.Remaining();
  const double since = std::chrono::duration<double>(Clock::now() - before).count();
  static uint64_t unseen = 100;
  recordings.Use(unseen++);  // with more work after step 1, the wait is not for step 1 alone
  EXPECT_FALSE(recordings.Remaining().has_value());
  recordings.Finished(recordings.launches());
  if (left) left = std::ceil((*left + since) * 1e-3) * 1e3;  // the test's times are 1000 s apart
  return left;
}

TEST(Recordings, RemainingIsTheShortestOfTheLastFourTimes) {
  std::mt19937_64 random = testing::TestRandom();
  Recordings recordings(3, Destroy);
  EXPECT_FALSE(recordings.Remaining().has_value());
  EXPECT_FALSE(RunStep(recordings, 1));
  EXPECT_FALSE(Expected(recordings).has_value());
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) {
    times.push_back(1e3 * static_cast<double>(1 + random() % 50));
    Take(recordings, times.back() - 0.5);
    const auto first = times.end() - std::min<std::ptrdiff_t>(4, std::ssize(times));
    EXPECT_EQ(Expected(recordings), *std::min_element(first, times.end())) << i;
    if (random() % 3 == 0) {  // a wait for more than this step does not measure its time
      EXPECT_TRUE(RunStep(recordings, 1));
      recordings.Finished(recordings.launches());
    }
  }
  // The expected time is over.
  EXPECT_TRUE(RunStep(recordings, 1, Clock::now() - std::chrono::hours(100)));
  EXPECT_EQ(recordings.Remaining(), 0.0);
  recordings.Clear();
  EXPECT_FALSE(recordings.Remaining().has_value());
}

// As a model's step and the choice of its tokens, which takes a hundredth of the time.
TEST(Recordings, AStepThatFollowsBelongsToTheFirst) {
  Recordings recordings(3, Destroy);
  for (const uint64_t key : {1, 2}) EXPECT_FALSE(RunStep(recordings, key));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(RunStep(recordings, 1));
    EXPECT_EQ(recordings.Remaining().has_value(), i == 1);
    EXPECT_TRUE(RunStep(recordings, 2));
    ASSERT_NE(recordings.pending(), nullptr);
    EXPECT_EQ(recordings.pending()->key, 1u);
    EXPECT_TRUE(i == 0 || recordings.Remaining().value_or(0) > 900);
    recordings.Finished(recordings.launches(), 1000);
  }
  // Alone it has no time yet.
  EXPECT_TRUE(RunStep(recordings, 2));
  EXPECT_FALSE(recordings.Remaining().has_value());
  recordings.Clear();
}

TEST(Recordings, KeepsStepsThatMayBeRunning) {
  Recordings recordings(2, Destroy);
  for (uint64_t key = 0; key < 6; ++key) {
    RunStep(recordings, key);
    EXPECT_TRUE(RunStep(recordings, key));
  }
  EXPECT_EQ(alive.size(), 6u);
  // All but the last two launches have ended.
  recordings.Finished(recordings.launches() - 2);
  EXPECT_FALSE(RunStep(recordings, 6));
  EXPECT_EQ(alive.size(), 2u);
  EXPECT_EQ(recordings.size(), 3u);
  EXPECT_TRUE(RunStep(recordings, 4));
  EXPECT_TRUE(RunStep(recordings, 5));
}

// Compared with a list in the order of use.
TEST(Recordings, RandomUse) {
  std::mt19937_64 random = testing::TestRandom();
  constexpr size_t kLimit = 7;
  Recordings recordings(kLimit, Destroy);
  std::vector<uint64_t> known;  // the least recently used one first
  for (int i = 0; i < 5000; ++i) {
    const uint64_t key = random() % (1 + random() % 20);
    const auto found = std::find(known.begin(), known.end(), key);
    EXPECT_EQ(RunStep(recordings, key), found != known.end());
    if (found != known.end()) known.erase(found);
    if (known.size() == kLimit) known.erase(known.begin());
    known.push_back(key);
    recordings.Finished(recordings.launches());
    ASSERT_EQ(recordings.size(), known.size());
    ASSERT_LE(alive.size(), kLimit);
  }
  recordings.Clear();
  EXPECT_TRUE(alive.empty());
}

TEST(RecordingKey, TellsMemoryAndNumbersApart) {
  CpuDevice device(1);
  const auto key = [] { return RecordingKey(); };
  uint64_t of_first = 0;
  {
    const auto mirror = device.CreateMirror(4096);
    of_first = key().Add(*mirror).value();
    EXPECT_EQ(key().Add(*mirror).value(), of_first);
  }
  // The new object most likely has the same address.
  EXPECT_NE(key().Add(*device.CreateMirror(4096)).value(), of_first);
  const Buffer a = device.Allocate(64), b = device.Allocate(64);
  EXPECT_NE(key().Add(a).Add(b).value(), key().Add(b).Add(a).value());
  EXPECT_EQ(key().Add(a).value(), key().AddAddress(a.data()).value());
  EXPECT_NE(key().Add(int64_t{1}).value(), key().Add(int64_t{2}).value());
  EXPECT_NE(key().Add(int64_t{0}).value(), key().value());
  EXPECT_NE(RecordingKey("sample").value(), key().value());
}

}  // namespace
}  // namespace litecache
