// Invariants of policy litecache that hold for all queries.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <thread>

#include "kv/attention_error.h"
#include "kv/litecache/harness.h"
#include "ops/common/scratch.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr Layout kLayout{
    .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .dtype = DType::kF32};

KvOptions Options(const std::string& budget, const std::string& retriever = "exact") {
  KvOptions options;
  options.hata_bits = 128;
  options.policy = "litecache";
  options.budget = KvBudget::Parse(budget);
  options.retriever = retriever;
  options.resident_first_layer = false;
  return options;
}

// Two caches with the same input.
class Pair {
 public:
  Pair(std::unique_ptr<Cache> a, std::unique_ptr<Cache> b, double turn, uint64_t seed)
      : a_(std::move(a)), b_(std::move(b)), source_(a_->layout(), turn, seed) {}

  SequenceId Create() {
    const SequenceId id = a_->Create();
    EXPECT_EQ(b_->Create(), id);
    return id;
  }
  SequenceId Fork(SequenceId parent) {
    const SequenceId id = a_->Fork(parent);
    EXPECT_EQ(b_->Fork(parent), id);
    source_.Fork(parent, id);
    return id;
  }
  struct Difference {
    double worst = 0;                // row's testing::RelativeError
    double squares = 0, wanted = 0;  // sums over all outputs: of differences, of b's outputs
  };
  Difference Step(const std::vector<Part>& parts) {
    const kv::Step step = MakeStep(*a_, parts);
    StepInputs inputs = source_.Draw(step);
    const float scale = 1.0f / std::sqrt(static_cast<float>(a_->layout().head_dim));
    std::vector<std::vector<float>> outs[2];
    for (int i = 0; i < 2; ++i) {
      Cache& cache = i == 0 ? *a_ : *b_;
      cache.BeginStep(step);
      outs[i] = RunLayers(cache, device_, *stream_, step, inputs, scale, a_->layout().layers);
      cache.EndStep(step);
    }
    Difference sum;
    const auto columns = static_cast<size_t>(a_->layout().q_heads * a_->layout().head_dim);
    for (size_t layer = 0; layer < outs[0].size(); ++layer) {
      for (size_t at = 0; at < outs[0][layer].size(); at += columns) {
        const auto a = std::span(outs[0][layer]).subspan(at, columns);
        const auto b = std::span(outs[1][layer]).subspan(at, columns);
        sum.worst = std::max(sum.worst, testing::RelativeError(a, b));
        for (size_t i = 0; i < columns; ++i) {
          sum.squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
          sum.wanted += std::pow(static_cast<double>(b[i]), 2);
        }
      }
    }
    return sum;
  }
  LiteCache& a() { return dynamic_cast<LiteCache&>(*a_); }
  LiteCache& b() { return dynamic_cast<LiteCache&>(*b_); }

 private:
  std::unique_ptr<Cache> a_, b_;
  QuerySource source_;
  CpuDevice device_{2};
  std::unique_ptr<Stream> stream_ = device_.CreateStream();
};

class BudgetOfAll : public ::testing::TestWithParam<std::tuple<std::string, DType, std::string>> {};

TEST_P(BudgetOfAll, EqualsFullAttentionForHundredsOfSteps) {
  const auto& [retriever, dtype, prefetch] = GetParam();
  std::mt19937_64 random = testing::TestRandom();
  Layout layout = kLayout;
  layout.dtype = dtype;
  KvOptions options = Options("100%", retriever);
  options.prefetch = prefetch;
  CpuDevice device(2);
  Pair pair(PlanLiteCache(layout, options, nullptr)->Create(device, kPlenty),
            PlanFullCache(layout)->Create(device, kPlenty), 0.1, random());
  const double tolerance = 2 * AttentionTolerance(dtype);  // of both
  std::vector<SequenceId> ids;
  for (int64_t length : {1, 5, 64, 69, 200, 331}) {
    ids.push_back(pair.Create());
    ASSERT_LE(pair.Step({{ids.back(), length, false}}).worst, tolerance);
  }
  for (int step = 0; step < 300; ++step) {
    if (step == 50 || step == 150) ids.push_back(pair.Fork(ids[random() % ids.size()]));
    std::vector<Part> parts;
    for (const SequenceId id : ids) {
      if (random() % 8 == 0) continue;
      const bool prompt = random() % 60 == 0;
      parts.push_back({id, prompt ? 1 + static_cast<int64_t>(random() % 30) : 1, !prompt});
    }
    ASSERT_LE(pair.Step(parts).worst, tolerance) << "step " << step;
  }
  EXPECT_EQ(pair.a().GetStats().lookups, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, BudgetOfAll,
                         ::testing::Values(std::tuple("exact", DType::kF32, "off"),
                                           std::tuple("quest", DType::kF32, "on"),
                                           std::tuple("hata", DType::kF32, "off"),
                                           std::tuple("keys", DType::kF32, "off"),
                                           std::tuple("loki", DType::kF32, "off"),
                                           std::tuple("hata", DType::kBF16, "on"),
                                           std::tuple("quest", DType::kBF16, "off")));

TEST(LiteCachePolicy, EtaOfOneAlwaysRefreshesAndEtaOfMinusOneNever) {
  for (const double eta : {1.0, -1.0}) {
    KvOptions options = Options("10%");
    options.eta = eta;
    Harness harness(kLayout, options, nullptr, 0.02, testing::TestRandom()());
    const SequenceId id = harness.Create();
    harness.Step({{id, 200, false}});
    for (int i = 0; i < 100; ++i) harness.Step({{id}});
    const Stats stats = harness.cache().GetStats();
    EXPECT_EQ(stats.lookups, 400u);
    EXPECT_EQ(stats.hits, eta == 1.0 ? 0u : 400u);
    EXPECT_EQ(stats.miss.rows == 0, eta == -1.0);
    EXPECT_GT(stats.fill.rows, 0u);
  }
}

TEST(LiteCachePolicy, AHitLeavesRowsPositionsAndLabelUntouched) {
  KvOptions options = Options("10%");
  options.eta = 0.8;
  Harness harness(kLayout, options, nullptr, 0.05, testing::TestRandom()());
  const SequenceId id = harness.Create();
  harness.Step({{id, 300, false}});
  struct State {
    std::vector<int32_t> cached;
    std::vector<float> label;
    HeadCounters counters;
  };
  const auto look = [&] {
    std::vector<State> states;
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t head = 0; head < 2; ++head) {
        const auto label = harness.cache().Label(id, layer, head);
        states.push_back({harness.cache().CachedPositions(id, layer, head),
                          {label.begin(), label.end()},
                          harness.cache().Heads()[static_cast<size_t>(2 * layer + head)]});
      }
    }
    return states;
  };
  harness.Step({{id}});
  int hits = 0, misses = 0;
  std::vector<State> before = look();
  for (int i = 0; i < 150; ++i) {
    harness.Step({{id}});
    const std::vector<State> after = look();
    for (size_t h = 0; h < after.size(); ++h) {
      if (after[h].counters.hits > before[h].counters.hits) {
        ++hits;
        EXPECT_EQ(after[h].cached, before[h].cached);
        EXPECT_EQ(after[h].label, before[h].label);
        EXPECT_EQ(after[h].counters.rows_moved, before[h].counters.rows_moved);
      } else {
        ++misses;
        EXPECT_NE(after[h].label, before[h].label);
      }
    }
    before = after;
  }
  EXPECT_GT(hits, 20);
  EXPECT_GT(misses, 20);
}

// Every combination of window sizes with prompts around their boundaries, decoded until the ring
// has wrapped around twice.
TEST(LiteCachePolicy, TheRecentRingWrapsRightlyAtEveryBoundary) {
  std::mt19937_64 random = testing::TestRandom();
  const Layout layout{
      .layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32};
  for (const int64_t recent : {1, 2, 63, 64, 65}) {
    for (const int64_t sink : {0, 1, 2, 3, 4}) {
      SCOPED_TRACE(::testing::Message() << "recent " << recent << " sink " << sink);
      KvOptions options = Options("5");
      options.recent_tokens = recent;
      options.sink_tokens = sink;
      options.carry_tokens = static_cast<int64_t>(random() % 3) * 17;
      options.eta = 0.7;
      Harness harness(layout, options, nullptr, 0.1, random());
      std::vector<Part> parts = {{harness.Create(), 1, true}};  // decodes from its first token on
      for (const int64_t prompt : {int64_t{1}, sink, sink + 1, recent - 1, recent, recent + 1,
                                   recent + sink, recent + sink + 1, recent + sink + 6}) {
        if (prompt < 1) continue;
        parts.push_back({harness.Create(), 1, true});
        harness.Step({{parts.back().id, prompt, false}});
      }
      for (int64_t i = 0; i < 2 * recent + sink + 12; ++i) harness.Step(parts);
      if (HasFailure()) return;
    }
  }
}

TEST(LiteCachePolicy, DeltaUpdateAndFullReplacementHoldTheSameRows) {
  std::mt19937_64 random = testing::TestRandom();
  for (const char* retriever : {"exact", "quest", "hata", "keys", "loki"}) {
    for (const double slots : {1.0, 1.7}) {
      SCOPED_TRACE(retriever);
      KvOptions delta = Options("8%", retriever);
      delta.eta = 0.9;
      delta.slots = slots;
      KvOptions full = delta;
      full.slots = 1;
      full.delta_update = false;
      CpuDevice device(2);
      Pair pair(PlanLiteCache(kLayout, delta, nullptr)->Create(device, kPlenty),
                PlanLiteCache(kLayout, full, nullptr)->Create(device, kPlenty), 0.05, random());
      const SequenceId id = pair.Create();
      pair.Step({{id, 400, false}});
      for (int i = 0; i < 120; ++i) {
        ASSERT_LE(pair.Step({{id}}).worst, 2e-5);
        for (int64_t layer = 0; layer < 2; ++layer) {
          for (int64_t head = 0; head < 2; ++head) {
            ASSERT_EQ(pair.a().CachedPositions(id, layer, head),
                      pair.b().CachedPositions(id, layer, head));
          }
        }
      }
      const Stats a = pair.a().GetStats(), b = pair.b().GetStats();
      EXPECT_EQ(a.hits, b.hits);
      EXPECT_LT(a.miss.rows, b.miss.rows);
      EXPECT_GT(a.miss.rows, 0u);
    }
  }
}

TEST(LiteCachePolicy, MoreSlotsMoveFewerRows) {
  const uint64_t seed = testing::TestRandom()();
  uint64_t before = UINT64_MAX;
  for (const double slots : {1.0, 2.0, 4.0}) {
    KvOptions options = Options("8%");
    options.eta = 1;
    options.slots = slots;
    Harness harness(kLayout, options, nullptr, 0.1, seed);
    const SequenceId id = harness.Create();
    harness.Step({{id, 500, false}});
    for (int i = 0; i < 60; ++i) harness.Step({{id}});
    const uint64_t rows = harness.cache().GetStats().miss.rows;
    EXPECT_LT(rows, before);
    before = rows;
  }
}

// Rows of the store differ from the exact ones by the rounding of their codes, and outputs by the
// resulting error, neither more nor less; everything outside the store is exact.
class QuantizedStore : public ::testing::TestWithParam<CodeRounding> {};

TEST_P(QuantizedStore, StaysCloseToExactRows) {
  const std::string rows = GetParam().format;
  const double rounding = GetParam().OfOutputs();
  std::mt19937_64 random = testing::TestRandom();
  for (const bool resident : {false, true}) {
    KvOptions exact = Options("100%");
    exact.resident_first_layer = resident;
    KvOptions quantized = exact;
    quantized.host_rows = rows;
    CpuDevice device(2);
    Pair pair(PlanLiteCache(kLayout, exact, nullptr)->Create(device, kPlenty),
              PlanLiteCache(kLayout, quantized, nullptr)->Create(device, kPlenty), 0.1, random());
    const SequenceId a = pair.Create(), b = pair.Create();
    EXPECT_LE(pair.Step({{a, 333, false}, {b, 50, false}}).worst, 1e-5)
        << "a chunk sees itself exactly";
    double squares = 0, wanted = 0;
    const auto step = [&](const std::vector<Part>& parts) {
      const Pair::Difference difference = pair.Step(parts);
      squares += difference.squares;
      wanted += difference.wanted;
    };
    step({{a, 100, false}, {b, 1, true}});
    for (int i = 0; i < 100; ++i) step({{a}, {b}});
    step({{b, 40, false}, {a}});
    for (int i = 0; i < 30; ++i) step({{a}, {b}});
    // Recent rows are not in the store, nor is one of the two layers if it is resident: ratios of
    // 0.65 to 0.86 were measured.
    const double error = std::sqrt(squares / wanted) / (resident ? std::sqrt(0.5) : 1);
    EXPECT_LT(error, rounding);
    EXPECT_GT(error, 0.5 * rounding) << "the store does not seem to be quantized";
    const Stats x = pair.a().GetStats(), y = pair.b().GetStats();
    EXPECT_EQ(x.prefill.rows, y.prefill.rows);
    EXPECT_EQ(y.prefill.bytes, y.prefill.rows * (rows == "int4" ? 2 * (16 + 4) : 2 * 32 + 16));
    EXPECT_EQ(x.spill.rows, y.spill.rows);
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedStore, ::testing::ValuesIn(kCodeRoundings),
                         [](const auto& rows) { return rows.param.format; });

TEST(LiteCachePolicy, RecallOfTheExactRetrieverIsOne) {
  KvOptions options = Options("10%");
  options.measure_recall = true;
  options.eta = 0.8;
  Harness harness(kLayout, options, nullptr, 0.05, testing::TestRandom()());
  const SequenceId id = harness.Create();
  harness.Step({{id, 300, false}});
  for (int i = 0; i < 60; ++i) harness.Step({{id}});
  for (const HeadCounters& head : harness.cache().Heads()) {
    EXPECT_EQ(head.lookups, 60u);
    EXPECT_EQ(head.recall_refreshes, head.lookups - head.hits);
    EXPECT_EQ(head.recall_retrieved, static_cast<double>(head.recall_refreshes));
    EXPECT_GE(head.recall_held, head.recall_retrieved);
    EXPECT_LT(head.recall_held, static_cast<double>(head.lookups));
  }
}

// The scratch that steps keep on threads is counted in memory plans. Runs on a separate thread,
// whose scratch is new, as is the pool's.
TEST(LiteCachePolicy, ScratchStaysWithinWhatPlansCount) {
  constexpr int64_t kTokens = 3000;
  for (const char* retriever : {"exact", "hata", "keys", "quest", "loki"}) {
    for (const int64_t sequences : {1, 5}) {
      std::thread([&] {
        KvOptions options = Options("10%", retriever);
        options.thresholds = "fixed";
        options.eta = 1;  // every step refreshes
        const auto plan = PlanLiteCache(kLayout, options, nullptr);
        constexpr int kThreads = 2;
        CpuDevice device(kThreads);
        const auto stream = device.CreateStream();
        const int64_t before = ops::cpu::ScratchBytesHeld().load();
        const auto cache = plan->Create(device, kPlenty);
        QuerySource source(kLayout, 0.1, 7);
        std::vector<Part> parts;
        const auto run = [&](const std::vector<Part>& of_step) {
          const kv::Step step = MakeStep(*cache, of_step);
          StepInputs inputs = source.Draw(step);
          cache->BeginStep(step);
          RunLayers(*cache, device, *stream, step, inputs, 0.2f, kLayout.layers);
          cache->EndStep(step);
        };
        for (int64_t i = 0; i < sequences; ++i) {
          parts.push_back({.id = cache->Create()});
          for (int64_t past = 0; past < kTokens; past += 1000) {
            run({{.id = parts.back().id, .rows = 1000, .decode = false}});
          }
        }
        for (int i = 0; i < 3; ++i) run(parts);
        const int64_t grown = ops::cpu::ScratchBytesHeld().load() - before;
        // Tiles and single rows, whose size plans do not depend on.
        constexpr int64_t kSmall = (kThreads + 1) * (96 << 10);
        EXPECT_GT(grown, 0);
        EXPECT_LE(grown, kSmall + static_cast<int64_t>(
                                      plan->ScratchBytes(sequences, kTokens + 3, kThreads)))
            << retriever << ", " << sequences << " sequences";
      }).join();
    }
  }
}

}  // namespace
}  // namespace litecache::kv
