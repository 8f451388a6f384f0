// Policy retroinfer against the oracle of retroinfer_driver.h, and invariants that hold for all
// inputs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "base/error.h"
#include "expect_error.h"
#include "kv/device_test.h"
#include "lab/policies/retroinfer/options.h"
#include "lab/policies/retroinfer/tests/retroinfer_driver.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

class RetroPolicy : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, RetroPolicy, ::testing::Values("cpu", "cuda"), DeviceName());

class Oracle
    : public ::testing::TestWithParam<std::tuple<const char*, DType, int64_t, double, bool>> {};

TEST_P(Oracle, BatchesOfMixedLengthsOverHundredsOfSteps) {
  const auto& [device, dtype, head_dim, cache, hints] = GetParam();
  if (TypeOf(device) == DeviceType::kCuda && FindCudaDevices().devices.empty()) {
    GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
  }
  std::mt19937_64 random = testing::TestRandom();
  Layout layout = kRetroLayout;
  layout.dtype = dtype;
  layout.head_dim = head_dim;
  KvOptions options = SmallRetroOptions();
  options.settings.Of<RetroInferOptions>().cache = cache;
  RetroDriver driver(layout, options, random(), device);
  std::vector<SequenceId> ids;
  // Nothing; below the sink; all steady; just below and at the first index; three segments.
  for (const int64_t length : {0, 2, 50, 80, 81, 200, 470}) {
    ids.push_back(driver.Create());
    for (int64_t done = 0; done < length;) {
      const int64_t rows =
          std::min<int64_t>(length - done, 1 + static_cast<int64_t>(random() % 150));
      done += rows;
      driver.Step({{ids.back(), rows, false, hints && done == length}});
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  for (int step = 0; step < 220; ++step) {
    std::vector<RetroPart> parts;
    for (const SequenceId id : ids) {
      if (random() % 8 != 0) parts.push_back({id});
    }
    if (parts.empty()) continue;
    driver.Step(parts, random() % 20 == 0 ? static_cast<int64_t>(random() % 3) : -1);
    ASSERT_FALSE(HasFatalFailure()) << "step " << step;
  }
  const Stats stats = driver.cache().GetStats();
  EXPECT_GT(stats.lookups, 0u);
  EXPECT_EQ(stats.hits > 0, cache > 0);
  EXPECT_GT(stats.spill.rows, 0u);
  for (const SequenceId id : ids) driver.Release(id);
  EXPECT_EQ(driver.cache().GetStats().used, TierBytes{});
}

INSTANTIATE_TEST_SUITE_P(All, Oracle,
                         ::testing::Values(std::tuple("cpu", DType::kF32, 24, 3.0, true),
                                           std::tuple("cpu", DType::kF32, 17, 0.7, false),
                                           std::tuple("cpu", DType::kBF16, 32, 3.0, true),
                                           std::tuple("cpu", DType::kBF16, 40, 0.0, false),
                                           std::tuple("cuda", DType::kF32, 24, 3.0, true),
                                           std::tuple("cuda", DType::kBF16, 64, 0.7, false),
                                           std::tuple("cuda", DType::kBF16, 32, 3.0, true),
                                           std::tuple("cuda", DType::kBF16, 40, 0.0, false)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(info.index);
                         });

// Prompts that continue after their end was announced to the cache, prompts after decoding, and
// forks of all of them.
TEST_P(RetroPolicy, ForksAndLaterPrompts) {
  std::mt19937_64 random = testing::TestRandom();
  RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device());
  std::vector<SequenceId> ids;
  for (const int64_t length : {60, 90, 260}) {
    ids.push_back(driver.Create());
    driver.Step({{ids.back(), length, false, true}});
    if (length == 90) driver.Step({{ids.back(), 77, false, true}});
    ASSERT_FALSE(HasFatalFailure());
  }
  for (int step = 0; step < 260; ++step) {
    if (step % 40 == 0) ids.push_back(driver.Fork(ids[random() % ids.size()]));
    if (step % 60 == 30) {
      const size_t gone = random() % ids.size();
      driver.Release(ids[gone]);
      ids.erase(ids.begin() + static_cast<int64_t>(gone));
    }
    if (step % 50 == 20) {
      const SequenceId id = ids[random() % ids.size()];
      if (driver.cache().Index(id).clusters > 0) {
        driver.Step({{id, 1 + static_cast<int64_t>(random() % 200), false, random() % 2 == 0}});
        if (random() % 2 == 0) ids.push_back(driver.Fork(id));
      }
      ASSERT_FALSE(HasFatalFailure()) << "step " << step;
    }
    std::vector<RetroPart> parts;
    for (const SequenceId id : ids) {
      if (random() % 6 != 0) parts.push_back({id});
    }
    if (parts.empty()) continue;
    driver.Step(parts, random() % 20 == 0 ? static_cast<int64_t>(random() % 3) : -1);
    ASSERT_FALSE(HasFatalFailure()) << "step " << step;
  }
  for (const SequenceId id : ids) driver.Release(id);
  EXPECT_EQ(driver.cache().GetStats().used, TierBytes{});
}

// Forks directly after the prompt, announced or not, before any decoding.
TEST_P(RetroPolicy, ForksOfAFreshPrompt) {
  for (const bool told : {false, true}) {
    std::mt19937_64 random = testing::TestRandom();
    RetroDriver driver(kRetroLayout, SmallRetroOptions(), random(), device());
    const SequenceId id = driver.Create();
    driver.Step({{id, 300, false, told}});
    const SequenceId a = driver.Fork(id), b = driver.Fork(a);
    for (int step = 0; step < 150; ++step) {
      driver.Step({{id}, {a}, {b}});
      ASSERT_FALSE(HasFatalFailure()) << "step " << step;
    }
  }
}

// Retrieved clusters that do not fit the execution buffer are estimated.
TEST_P(RetroPolicy, WhatTheBufferHasNoRoomForIsEstimated) {
  KvOptions options = SmallRetroOptions();
  RetroInferOptions& o = options.settings.Of<RetroInferOptions>();
  o.cluster_tokens = 1;
  o.block_tokens = 1;
  o.update_tokens = 512;
  o.retrieval = 0.012;
  o.iterations = 1;
  // As many clusters as tokens, and every token is assigned to the long keys of its direction: the
  // few non-empty clusters exceed the size of the buffer, which is 150 rows.
  std::mt19937_64 random = testing::TestRandom();
  // Two of three lives overflow.
  uint64_t overflows = 0;
  for (int life = 0; life < 20 && overflows == 0; ++life) {
    RetroDriver driver(kRetroLayout, options, random(), device());
    const SequenceId id = driver.Create();
    driver.Step({{id, 3000, false, true}});
    for (int step = 0; step < 20; ++step) {
      driver.Step({{id}});
      ASSERT_FALSE(HasFatalFailure()) << "step " << step;
    }
    EXPECT_EQ(driver.shape().BufferBlocks(driver.cache().Index(id).nprobe), 150);
    overflows += driver.overflows();
  }
  EXPECT_GT(overflows, 0u);
}

double Worst(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double worst = 0;
  for (size_t l = 0; l < a.size(); ++l) {
    for (size_t i = 0; i < a[l].size(); ++i) {
      const double error = std::abs(static_cast<double>(a[l][i]) - static_cast<double>(b[l][i]));
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
  }
  return worst;
}

// Two caches with the same input; the largest difference of their outputs, in decode steps only.
double Difference(const std::string& device, const CachePlan& a, const CachePlan& b, bool hint_a,
                  bool hint_b, int threads_a, int threads_b, uint64_t seed) {
  const Machine machine_a = OpenMachine(device, threads_a);
  const Machine machine_b = OpenMachine(device, threads_b);
  Device &device_a = machine_a.compute(), &device_b = machine_b.compute();
  const auto stream_a = device_a.CreateStream(), stream_b = device_b.CreateStream();
  const auto cache_a = a.Create(device_a, kMuch), cache_b = b.Create(device_b, kMuch);
  RetroSource source(a.layout(), seed);
  std::vector<SequenceId> ids;
  double worst = 0;
  const auto run = [&](const std::vector<RetroPart>& parts) {
    Step step_a = MakeRetroStep(*cache_a, parts), step_b = step_a;
    for (StepSequence& part : step_a.sequences) part.ends_prompt = part.ends_prompt && hint_a;
    for (StepSequence& part : step_b.sequences) part.ends_prompt = part.ends_prompt && hint_b;
    RetroInputs inputs = source.Draw(step_a);
    cache_a->BeginStep(step_a);
    const auto out_a = RunRetro(device_a, *cache_a, *stream_a, step_a, inputs, a.layout().layers);
    cache_a->EndStep(step_a);
    cache_b->BeginStep(step_b);
    const auto out_b = RunRetro(device_b, *cache_b, *stream_b, step_b, inputs, a.layout().layers);
    cache_b->EndStep(step_b);
    if (step_a.decode_rows > 0) worst = std::max(worst, Worst(out_a, out_b));
  };
  for (const int64_t length : {30, 85, 333}) {
    ids.push_back(cache_a->Create());
    EXPECT_EQ(cache_b->Create(), ids.back());
    run({{ids.back(), length, false, true}});
  }
  for (int step = 0; step < 150; ++step) {
    std::vector<RetroPart> parts;
    for (const SequenceId id : ids) parts.push_back({id});
    run(parts);
  }
  return worst;
}

// Outputs depend neither on cached blocks, nor on threads, nor on the time at which the index was
// started, bit for bit.
TEST_P(RetroPolicy, OutputsDoNotDependOnCachesThreadsAndHints) {
  const uint64_t seed = testing::TestRandom()();
  KvOptions small = SmallRetroOptions(), large = SmallRetroOptions();
  small.settings.Of<RetroInferOptions>().cache = 0;
  large.settings.Of<RetroInferOptions>().cache = 10;
  const auto a = PlanRetroCache(kRetroLayout, small, device_type()),
             b = PlanRetroCache(kRetroLayout, large, device_type());
  EXPECT_EQ(Difference(device(), *a, *b, true, true, 2, 2, seed), 0);
  EXPECT_EQ(Difference(device(), *a, *a, true, false, 1, 4, seed), 0);
}

// With every cluster retrieved, it is full attention.
TEST_P(RetroPolicy, RetrievingEveryClusterIsFullAttention) {
  KvOptions options = SmallRetroOptions();
  options.settings.Of<RetroInferOptions>().retrieval = 1;
  options.settings.Of<RetroInferOptions>().estimation = 0;
  const auto retro = PlanRetroCache(kRetroLayout, options, device_type()),
             full = PlanFullCache(kRetroLayout);
  EXPECT_LE(Difference(device(), *retro, *full, true, true, 2, 2, testing::TestRandom()()), 5e-5);
}

TEST(RetroOptions, AreChecked) {
  const auto message = [](const auto& change) -> std::string {
    KvOptions options = SmallRetroOptions();
    change(options.settings.Of<RetroInferOptions>());
    try {
      options.Validate();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([](RetroInferOptions&) {}), "");
  const auto names = [&](const char* name, const auto& change) {
    EXPECT_NE(message(change).find(name), std::string::npos) << name;
  };
  names("cluster_tokens", [](RetroInferOptions& o) { o.cluster_tokens = 0; });
  names("segment_tokens", [](RetroInferOptions& o) { o.segment_tokens = 7; });
  names("update_tokens", [](RetroInferOptions& o) { o.update_tokens = 7; });
  names("iterations", [](RetroInferOptions& o) { o.iterations = 0; });
  names("retrieval", [](RetroInferOptions& o) { o.retrieval = 1.5; });
  names("estimation", [](RetroInferOptions& o) { o.estimation = NAN; });
  names("block_tokens", [](RetroInferOptions& o) { o.block_tokens = 0; });
  names("retroinfer.cache", [](RetroInferOptions& o) { o.cache = -1; });
  KvOptions options = SmallRetroOptions();
  options.measure_recall = true;
  EXPECT_ERROR(PlanRetroCache(kRetroLayout, options), InvalidArgument, "measure_recall");
  options = SmallRetroOptions();
  options.settings.Of<RetroInferOptions>().block_tokens = 1 << 19;
  EXPECT_THROW(PlanRetroCache(kRetroLayout, options), InvalidArgument);
}

}  // namespace
}  // namespace litecache::lab
