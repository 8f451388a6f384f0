// Forced reuse has the requested effect on every device; contexts stored without attention are the
// same as attended ones.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>

#include "kv/device_test.h"
#include "kv/litecache/harness.h"
#include "kv/row_store.h"
#include "lab/forced/reuse_override.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

constexpr Layout kLayout{
    .layers = 4, .q_heads = 6, .kv_heads = 3, .head_dim = 32, .dtype = DType::kBF16};

KvOptions Options() {
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "hata";
  options.hata_bits = 128;
  options.hata_group = "sum";
  options.budget = KvBudget::Parse("10%");
  options.prefetch = "off";
  return options;
}

class OnDevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && FindCudaDevices().devices.empty()) {
      GTEST_SKIP() << "no GPU: " << FindCudaDevices().reason;
    }
    machine_ = OpenMachine(GetParam(), 2);
    stream_ = machine_.compute().CreateStream();
  }
  std::unique_ptr<CachePlan> Plan(const KvOptions& options) {
    return MakeCachePlan(kLayout, options, nullptr, machine_.compute().type());
  }
  std::vector<std::vector<float>> Run(Cache& cache, const Step& step, StepInputs& inputs) {
    cache.BeginStep(step);
    auto outs =
        RunLayers(cache, machine_.compute(), *stream_, step, inputs, kScale, kLayout.layers);
    cache.EndStep(step);
    return outs;
  }

  static constexpr float kScale = 0.17f;
  Machine machine_;
  std::unique_ptr<Stream> stream_;
};

// Hits and transferred rows of caches that decode after prompts of 1000 to 1400 tokens.
struct Shares {
  double hits = 0, kept = 0;
  uint64_t lookups = 0;
};

TEST_P(OnDevice, ForcedSharesComeOut) {
  std::mt19937_64 random = testing::TestRandom();
  for (const auto& [hit_ratio, overlap, turn, slots] :
       {std::tuple{std::optional(0.8), std::optional(0.7), 1.0, 1.0},
        std::tuple{std::optional(0.25), std::optional(0.1), 0.0, 1.5},
        std::tuple{std::optional(0.0), std::optional(1.0), 0.01, 1.0},
        std::tuple{std::optional<double>(), std::optional(0.5), 1.0, 1.0},
        std::tuple{std::optional(0.5), std::optional<double>(), 1.0, 1.0}}) {
    KvOptions options = Options();
    options.slots = slots;
    const auto plan = Plan(options);
    ForceReuse(
        plan.get(),
        DrawReuse(*plan->heads(), {.hit_ratio = hit_ratio, .overlap = overlap, .seed = random()}));
    const auto cache = plan->Create(machine_.compute(), kPlenty);
    QuerySource source(kLayout, turn, random());
    std::vector<Part> prompts, rows;
    for (int i = 0; i < 3; ++i) {
      const SequenceId id = cache->Create();
      prompts.push_back({id, 1000 + static_cast<int64_t>(random() % 400), false});
      rows.push_back({id});
    }
    Step step = MakeStep(*cache, prompts);
    StepInputs inputs = source.Draw(step);
    Run(*cache, step, inputs);
    for (int i = 0; i < 60; ++i) {
      step = MakeStep(*cache, rows);
      inputs = source.Draw(step);
      for (const auto& out : Run(*cache, step, inputs)) {
        for (const float x : out) ASSERT_TRUE(std::isfinite(x));
      }
    }
    const Stats stats = cache->GetStats();
    HeadCounters sum;
    for (const HeadCounters& head : cache->Heads()) sum += head;
    EXPECT_EQ(stats.lookups, 60u * 3 * 9);  // layer 0 is resident
    const auto lookups = static_cast<double>(stats.lookups);
    const double hits = static_cast<double>(stats.hits) / lookups;
    if (hit_ratio) {
      EXPECT_NEAR(hits, *hit_ratio, 0.01);
    } else {
      EXPECT_LT(hits, 0.05);  // queries that rotate by a right angle
    }
    // A head selects 100 to 140 rows.
    const auto selected = static_cast<double>(sum.rows_selected);
    ASSERT_GT(selected, 0);
    const auto moved = static_cast<double>(sum.rows_moved);
    // Resident heads (layer 0) transfer nothing, so their selections are excluded.
    double offloaded = 0;
    for (size_t i = 3; i < cache->Heads().size(); ++i) {
      offloaded += static_cast<double>(cache->Heads()[i].rows_selected);
    }
    if (overlap) {
      EXPECT_NEAR(1 - moved / offloaded, *overlap, 0.01);
    } else {
      EXPECT_LT(1 - moved / offloaded, 0.4);
    }
  }
}

TEST_P(OnDevice, ForcedChecksComeOut) {
  std::mt19937_64 random = testing::TestRandom();
  for (const double verified : {1.0, 0.9, 0.3}) {
    KvOptions options = Options();
    options.prefetch = "2";
    const auto plan = Plan(options);
    ForcedReuse reuse = DrawReuse(*plan->heads(), {.hit_ratio = 0.6, .seed = random()});
    reuse.checks = DrawReuse(*plan->heads(), {.hit_ratio = verified, .seed = random()}).heads;
    ForceReuse(plan.get(), std::move(reuse));
    const auto cache = plan->Create(machine_.compute(), kPlenty);
    QuerySource source(kLayout, 0.1, random());
    const SequenceId id = cache->Create();
    Step step = MakeStep(*cache, {{id, 1200, false}});
    StepInputs inputs = source.Draw(step);
    Run(*cache, step, inputs);
    for (int i = 0; i < 64; ++i) {
      step = MakeStep(*cache, {{id}});
      inputs = source.Draw(step);
      Run(*cache, step, inputs);
    }
    const Stats stats = cache->GetStats();
    EXPECT_EQ(stats.lookups, 64u * 9);  // layer 0 is resident
    EXPECT_EQ(stats.verified, stats.lookups);
    EXPECT_NEAR(static_cast<double>(stats.hits) / static_cast<double>(stats.lookups), 0.6, 0.01);
    EXPECT_NEAR(static_cast<double>(stats.corrected) / static_cast<double>(stats.verified),
                1 - verified, 0.01);
    EXPECT_EQ(stats.miss.rows > 0, verified < 1);
    EXPECT_GT(stats.prefetch.rows, 0u);
  }
}

TEST_P(OnDevice, RowsStoredAloneAreThoseOfAPrompt) {
  std::mt19937_64 random = testing::TestRandom();
  for (const std::string policy :
       {"full", "litecache", "fp8", "streaming", "flexgen", "flexgen, half"}) {
    KvOptions options = Options();
    if (policy == "fp8") options.host_rows = "fp8";
    if (policy == "full" || policy == "streaming") options.policy = policy;
    if (policy.starts_with("flexgen")) options.policy = "flexgen";
    if (policy == "flexgen, half") {
      FindOption(KvOptionTable(), "flexgen.device_share").set(options, "0.5", policy);
    }
    const auto plan = Plan(options);
    const auto a = plan->Create(machine_.compute(), kPlenty);
    const auto b = plan->Create(machine_.compute(), kPlenty);
    if (dynamic_cast<RowStore*>(b.get()) == nullptr) {  // only on a GPU is there a fast fill
      EXPECT_EQ(GetParam(), "cpu") << policy;
      continue;
    }
    QuerySource source(kLayout, 0.3, random());
    const SequenceId id = a->Create();
    ASSERT_EQ(b->Create(), id);
    auto& store = dynamic_cast<RowStore&>(*b);
    std::vector<Buffer> memory;
    const auto view = [&](const std::vector<float>& values, int64_t rows) {
      memory.push_back(machine_.compute().Allocate(values.size() * sizeof(float)));
      machine_.compute().Upload(memory.back().data(), values.data(), memory.back().size());
      return MatrixView::Of(memory.back().as<float>(), rows,
                            static_cast<int64_t>(values.size()) / rows);
    };
    for (const int64_t rows : {300, 1, 211}) {
      const Step step = MakeStep(*a, {{id, rows, false}});
      StepInputs inputs = source.Draw(step);
      Run(*a, step, inputs);
      b->BeginStep(step);
      for (int64_t layer = 0; layer < kLayout.layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        store.StoreRows(*stream_, layer, step, view(inputs.q[l], rows), view(inputs.k[l], rows),
                        view(inputs.v[l], rows));
      }
      stream_->Synchronize();
      memory.clear();
      b->EndStep(step);
    }
    for (int i = 0; i < 10; ++i) {
      const Step step = MakeStep(*a, {{id}});
      StepInputs inputs = source.Draw(step);
      const auto expected = Run(*a, step, inputs);
      EXPECT_EQ(Run(*b, step, inputs), expected) << policy << ", step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, OnDevice, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(DrawReuse, EveryStepHasItsShare) {
  std::mt19937_64 random = testing::TestRandom();
  HeadPlan plan{
      .layers = 5, .kv_heads = 7, .heads = {}, .importance = {}, .thresholds = "", .remark = ""};
  plan.heads.resize(35);
  for (size_t i = 0; i < 7; ++i) plan.heads[i].resident = true;
  const uint64_t seed = random();
  const ForcedReuse reuse =
      DrawReuse(plan, {.hit_ratio = 0.37, .overlap = 0.25, .steps = 50, .seed = seed});
  ASSERT_EQ(reuse.heads.size(), 50u * 35);
  int64_t all = 0;
  std::vector<int> of_head(35);
  for (size_t step = 0; step < 50; ++step) {
    int64_t hits = 0;
    for (size_t i = 0; i < 35; ++i) {
      const ops::ForcedHead& head = reuse.heads[step * 35 + i];
      EXPECT_EQ(head.kept, ops::ForcedHead::kWhole / 4);
      if (i >= 7) hits += head.hit == 1;
      of_head[i] += head.hit == 1;
    }
    EXPECT_NEAR(static_cast<double>(hits), 0.37 * 28, 1.0);
    all += hits;
  }
  EXPECT_EQ(all, 518);  // 0.37 * 28 * 50
  for (size_t i = 7; i < 35; ++i) {
    EXPECT_GT(of_head[i], 2) << i;
    EXPECT_LT(of_head[i], 40) << i;
  }
  const ForcedReuse again =
      DrawReuse(plan, {.hit_ratio = 0.37, .overlap = 0.25, .steps = 50, .seed = seed});
  for (size_t i = 0; i < reuse.heads.size(); ++i) {
    ASSERT_EQ(again.heads[i].hit, reuse.heads[i].hit);
  }
  EXPECT_THROW(DrawReuse(plan, {.hit_ratio = 1.1, .overlap = {}}), InvalidArgument);
  EXPECT_THROW(DrawReuse(plan, {.hit_ratio = {}, .overlap = -0.1}), InvalidArgument);
}

}  // namespace
}  // namespace litecache::lab
