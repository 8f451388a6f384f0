#include "device/cuda/recordings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/recording_key.h"
#include "test_seed.h"

namespace litecache {
namespace {

// Graphs that only say that they are gone.
std::multiset<CUgraphExec_st*> alive;
CUgraphExec_st* NewGraph() {
  static uintptr_t last = 0;
  auto* graph = reinterpret_cast<CUgraphExec_st*>(++last);
  alive.insert(graph);
  return graph;
}
void Destroy(CUgraphExec_st* graph) { EXPECT_EQ(alive.erase(graph), 1u); }

// As CudaStream::Run does it: whether the step was replayed.
bool RunStep(Recordings& recordings, uint64_t key) {
  Recordings::Step* const step = recordings.Use(key);
  if (step == nullptr) return false;
  EXPECT_EQ(step->key, key);
  if (step->graph == nullptr) step->graph = NewGraph();
  EXPECT_EQ(alive.count(step->graph), 1u);
  recordings.Launch(*step);
  return true;
}

TEST(Recordings, TheOneUsedLongestAgoGoes) {
  Recordings recordings(3, Destroy);
  for (const uint64_t key : {1, 2, 3}) EXPECT_FALSE(RunStep(recordings, key));
  for (const uint64_t key : {1, 2, 3}) EXPECT_TRUE(RunStep(recordings, key));
  recordings.Finished(recordings.launches());
  EXPECT_TRUE(RunStep(recordings, 1));
  recordings.Finished(recordings.launches());
  EXPECT_FALSE(RunStep(recordings, 4));  // 2 goes
  EXPECT_EQ(alive.size(), 2u);
  EXPECT_TRUE(RunStep(recordings, 1));
  EXPECT_TRUE(RunStep(recordings, 3));
  EXPECT_FALSE(RunStep(recordings, 2));
  recordings.Clear();
  EXPECT_TRUE(alive.empty());
  EXPECT_EQ(recordings.size(), 0u);
}

using Clock = std::chrono::steady_clock;

// A launch of step 1 that is waited for; the seconds that it took at least and at most.
std::pair<double, double> Take(Recordings& recordings, int milliseconds, bool overslept = false) {
  const auto before = Clock::now();
  EXPECT_TRUE(RunStep(recordings, 1));
  const auto launched = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  const auto slept = Clock::now();
  recordings.Finished(recordings.launches(), overslept);
  EXPECT_FALSE(recordings.Remaining().has_value());
  return {std::chrono::duration<double>(slept - launched).count(),
          std::chrono::duration<double>(Clock::now() - before).count()};
}

// What remains at once of a launch of step 1, which is not waited for.
std::optional<double> RemainingOfALaunch(Recordings& recordings) {
  EXPECT_TRUE(RunStep(recordings, 1));
  const std::optional<double> left = recordings.Remaining();
  recordings.Use(2);  // what is issued behind it makes the wait another one
  EXPECT_FALSE(recordings.Remaining().has_value());
  recordings.Finished(recordings.launches());
  return left;
}

TEST(Recordings, RemainingIsTheShortestOfTheLastFourTimes) {
  Recordings recordings(3, Destroy);
  EXPECT_FALSE(recordings.Remaining().has_value());
  EXPECT_FALSE(RunStep(recordings, 1));
  for (int known = 0; known < 4; ++known) {
    EXPECT_FALSE(RemainingOfALaunch(recordings).has_value()) << known << " times say too little";
    Take(recordings, 5);  // shorter than those that count
  }
  for (int shortest = 0; shortest < 4; ++shortest) {
    double least = 1e9, most = 1e9;
    for (int i = 0; i < 4; ++i) {
      const auto [at_least, at_most] = Take(recordings, i == shortest ? 40 : 150);
      least = std::min(least, at_least);
      most = std::min(most, at_most);
    }
    const auto before = Clock::now();
    const std::optional<double> left = RemainingOfALaunch(recordings);
    const double since = std::chrono::duration<double>(Clock::now() - before).count();
    ASSERT_TRUE(left.has_value()) << shortest;
    EXPECT_LE(*left, most) << shortest;
    EXPECT_GE(*left, std::max(0.0, least - since)) << shortest;
  }
  // A time that has passed.
  EXPECT_TRUE(RunStep(recordings, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(recordings.Remaining(), 0.0);
  recordings.Clear();
  EXPECT_FALSE(recordings.Remaining().has_value());
}

// Who has slept too long knows nothing of how long a step took: it would sleep as long again.
TEST(Recordings, AStepThatWasOversleptHasNoTime) {
  Recordings recordings(3, Destroy);
  EXPECT_FALSE(RunStep(recordings, 1));
  for (int i = 0; i < 4; ++i) Take(recordings, 20);
  EXPECT_TRUE(RemainingOfALaunch(recordings).has_value());
  Take(recordings, 20, true);
  for (int known = 0; known < 4; ++known) {
    EXPECT_FALSE(RemainingOfALaunch(recordings).has_value()) << known;
    Take(recordings, 20);
  }
  EXPECT_TRUE(RemainingOfALaunch(recordings).has_value());
  recordings.Clear();
}

TEST(Recordings, OneThatMayBeRunningStays) {
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

// Against a list in the order of use.
TEST(Recordings, RandomUse) {
  std::mt19937_64 random = testing::TestRandom();
  constexpr size_t kLimit = 7;
  Recordings recordings(kLimit, Destroy);
  std::vector<uint64_t> known;  // the one used longest ago first
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
  // Most likely at the same address.
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
