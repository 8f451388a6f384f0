// Policy retroinfer at the limits of its memory, and when steps, sequences or the cache end early.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/error.h"
#include "kv/device_test.h"
#include "lab/policies/retroinfer/options.h"
#include "lab/policies/retroinfer/tests/retroinfer_driver.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

class RetroBudget : public DeviceTest {};
class RetroCancel : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, RetroBudget, ::testing::Values("cpu", "cuda"), DeviceName());
INSTANTIATE_TEST_SUITE_P(Devices, RetroCancel, ::testing::Values("cpu", "cuda"), DeviceName());

TEST_P(RetroBudget, ARefusedStepChangesNothing) {
  for (const bool on_device : {false, true}) {
    std::mt19937_64 random = testing::TestRandom();
    const auto plan = PlanRetroCache(kRetroLayout, SmallRetroOptions(), device_type());
    const TierBytes need = 2 * plan->BytesFor(700);
    RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device(),
                       {.device = on_device ? need.device : kMuch.device,
                        .host = on_device ? kMuch.host : need.host});
    const SequenceId a = driver.Create(), b = driver.Create();
    driver.Step({{a, 500, false, true}});
    driver.Step({{b, 500, false, true}});
    std::string message;
    for (int step = 0; step < 3000 && message.empty(); ++step) {
      const TierBytes used = driver.cache().GetStats().used;
      const WaveCache::IndexInfo index = driver.cache().Index(a);
      try {
        driver.Step({{a}, {b}});
      } catch (const CapacityError& error) {
        message = error.what();
        EXPECT_EQ(driver.cache().GetStats().used, used);
        EXPECT_EQ(driver.cache().Index(a).clusters, index.clusters);
      }
      ASSERT_FALSE(HasFatalFailure());
    }
    EXPECT_NE(message.find(on_device ? "device tier" : "host store"), std::string::npos) << message;
    EXPECT_GE(driver.cache().Length(a), 700);  // the promised length
    driver.Release(a);
    for (int step = 0; step < 50; ++step) driver.Step({{b}});
    driver.Release(b);
    EXPECT_EQ(driver.cache().GetStats().used, TierBytes{});
  }
}

TEST_P(RetroBudget, ForksFitIntoWhatTheyWerePromised) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 12; ++round) {
    const auto plan = PlanRetroCache(kRetroLayout, SmallRetroOptions(), device_type());
    const int64_t prompt = 1 + static_cast<int64_t>(random() % 400);
    const int64_t decoded = static_cast<int64_t>(random() % 100);
    const int64_t more = 1 + static_cast<int64_t>(random() % 200);
    const int64_t shared = prompt + decoded;
    const Machine machine = OpenMachine(device(), 1);
    const auto stream = machine.compute().CreateStream();
    const auto cache =
        plan->Create(machine.compute(),
                     plan->BytesFor(shared + more) + 3 * plan->ForkBytesFor(shared, shared + more));
    RetroSource source(kRetroLayout, random());
    const auto step = [&](const std::vector<RetroPart>& parts) {
      const Step s = MakeRetroStep(*cache, parts);
      RetroInputs inputs = source.Draw(s);
      cache->BeginStep(s);
      RunRetro(machine.compute(), *cache, *stream, s, inputs, kRetroLayout.layers);
      cache->EndStep(s);
    };
    std::vector<RetroPart> parts = {{cache->Create()}};
    step({{parts[0].id, prompt, false, round % 2 == 0}});
    for (int64_t i = 0; i < decoded; ++i) step(parts);
    for (int i = 0; i < 3; ++i) parts.push_back({cache->Fork(parts[0].id)});
    ASSERT_NO_THROW({
      for (int64_t i = 0; i < more; ++i) step(parts);
    }) << "prompt "
       << prompt << " decoded " << decoded << " more " << more;
    for (const RetroPart& part : parts) cache->Release(part.id);
    EXPECT_EQ(cache->GetStats().used, TierBytes{});
  }
}

// ---- destruction at any time ----

TEST_P(RetroCancel, ReleasedWhileThreadsAreAtWork) {
  std::mt19937_64 random = testing::TestRandom();
  RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device());
  const SequenceId other = driver.Create();
  driver.Step({{other, 200, false, true}});
  for (int round = 0; round < 20; ++round) {
    const SequenceId id = driver.Create();
    driver.Step({{id, 300 + static_cast<int64_t>(random() % 500), false, round % 2 == 0}});
    for (uint64_t steps = random() % 3; steps > 0; --steps) driver.Step({{id}, {other}});
    driver.Release(id);
    driver.Step({{other}});
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_P(RetroCancel, AnAbandonedStepSpoilsNothing) {
  for (int64_t layers = 0; layers <= kRetroLayout.layers; ++layers) {
    std::mt19937_64 random = testing::TestRandom();
    RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device());
    const SequenceId id = driver.Create();
    driver.Abandon({{id, 150, false, true}}, layers);
    driver.Step({{id, 130, false, true}});
    for (int i = 0; i < 60; ++i) driver.Step({{id}});
    driver.Abandon({{id, 90, false, true}}, layers);
    for (int i = 0; i < 100; ++i) {
      driver.Step({{id}});
      ASSERT_FALSE(HasFatalFailure()) << "step " << i << " layers " << layers;
    }
    driver.Abandon({{id, 300, false, true}}, layers);
    driver.Release(id);
    EXPECT_EQ(driver.cache().GetStats().used, TierBytes{});
  }
}

// The last chunk of a prompt is abandoned after its rows have been placed among those of earlier
// chunks: the next chunk finds them in their original places, whatever other sequences do in
// between.
TEST_P(RetroCancel, AnAbandonedLastChunkLeavesEarlierOnesInOrder) {
  for (int64_t layers = 0; layers <= kRetroLayout.layers; ++layers) {
    std::mt19937_64 random = testing::TestRandom();
    RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device());
    const SequenceId id = driver.Create(), other = driver.Create();
    driver.Step({{id, 150, false, false}});
    driver.Step({{id, 101, false, false}});
    driver.Step({{other, 120, false, false}});
    driver.Abandon({{id, 70, false, true}}, layers);
    driver.Abandon({{other, 70, false, true}, {id, 40, false, true}}, layers);
    driver.Step({{other, 90, false, true}});
    driver.Step({{id, 30, false, false}});
    driver.Abandon({{id, 20, false, true}}, layers);
    const SequenceId fork = driver.Fork(id);
    driver.Step({{id, 35, false, true}, {fork, 7, false, true}});
    for (int i = 0; i < 100; ++i) {
      driver.Step({{id}, {other}, {fork}});
      ASSERT_FALSE(HasFatalFailure()) << "step " << i << " layers " << layers;
    }
    for (const SequenceId each : {id, other, fork}) driver.Release(each);
    EXPECT_EQ(driver.cache().GetStats().used, TierBytes{});
  }
}

// The cache is destroyed while an index is built and rows are copied.
TEST_P(RetroCancel, TheCacheMayEndAtAnyMoment) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 10; ++round) {
    RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device());
    const SequenceId id = driver.Create();
    driver.Step({{id, 900, false, true}});
    for (int step = 0; step < round % 3; ++step) driver.Step({{id}});
    if (round % 2 == 0) driver.Abandon({{id}}, 1);
  }
}

}  // namespace
}  // namespace litecache::lab
