// A replayed trace against the cache itself: the cache sees every query of a model that attends all
// rows, so its queries are the recorded ones.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kv/cache_plan.h"
#include "kv/forwarding_cache.h"
#include "kv/heads/head_plan.h"
#include "lab/trace/replay.h"
#include "lab/trace/trace_recorder.h"
#include "profile/small_model.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

// Results are those of `full`; `observer` attends the same and its results are dropped.
class ObservedCache final : public kv::ForwardingCache {
 public:
  ObservedCache(kv::Cache& full, kv::Cache& observer)
      : kv::ForwardingCache(full), observer_(observer) {}

  kv::SequenceId Create() override {
    const kv::SequenceId id = inner().Create();
    EXPECT_EQ(observer_.Create(), id);
    return id;
  }
  void BeginStep(const kv::Step& step) override {
    inner().BeginStep(step);
    observer_.BeginStep(step);
  }
  int64_t PredictionSource(int64_t layer) const override {
    return observer_.PredictionSource(layer);
  }
  void Prefetch(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
                float scale) override {
    observer_.Prefetch(stream, layer, step, q, scale);
  }
  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    observer_.Attend(stream, layer, step, q, k, v, softmax, out);
    inner().Attend(stream, layer, step, q, k, v, softmax, out);
  }
  void EndStep(const kv::Step& step) override {
    inner().EndStep(step);
    observer_.EndStep(step);
  }

 private:
  kv::Cache& observer_;
};

struct Counts {
  double lookups = 0, hits = 0, verified = 0, corrected = 0, moved = 0;
};

TEST(TraceReplay, CountsWhatTheCacheCounts) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  model::ModelConfig config = testing::SmallConfig();
  config.layers = 6;
  const auto decoder = model::RandomDecoder(device, config, random(), {.dtype = DType::kF32});
  const int64_t n = 400, steps = 40;
  const auto tokens = testing::RandomTokens(random, n, 2);  // few: similar queries
  const TraceOptions recorded{.steps = steps, .recent_tokens = 19};
  const Trace trace = RecordTrace(device, *stream, *decoder, tokens, recorded, nullptr);
  const kv::Layout layout = config.kv_layout(decoder->kv_dtype());

  double hits = 0, misses = 0, corrected = 0, confirmed = 0;
  for (const auto& [eta, slots] :
       {std::pair{0.05, 1.0}, std::pair{0.3, 2.0}, std::pair{0.6, 1.0}, std::pair{0.9, 2.0}}) {
    KvOptions options;
    options.policy = "litecache";
    options.retriever = "exact";
    options.prefetch = "2";
    options.budget = KvBudget();
    options.eta = eta;
    options.slots = slots;
    options.prediction_eta = 0.5;
    options.sink_tokens = recorded.sink_tokens;
    options.recent_tokens = recorded.recent_tokens;
    options.carry_tokens = 0;
    options.resident_first_layer = false;
    const auto plan = kv::MakeCachePlan(layout, options, nullptr);
    const auto full = kv::CreateFullCache(device, layout, uint64_t{64} << 20);
    const auto lite = plan->Create(device, {uint64_t{64} << 20, uint64_t{64} << 20});
    ObservedCache cache(*full, *lite);
    const kv::SequenceId id = cache.Create();
    const auto forward = [&](int64_t past, int64_t rows, bool decode) {
      std::vector<int32_t> positions;
      for (int64_t i = 0; i < rows; ++i) positions.push_back(static_cast<int32_t>(past + i));
      kv::Step step;
      step.sequences = {{id, 0, rows, past, decode}};
      step.rows = rows;
      step.decode_rows = decode ? rows : 0;
      decoder->Forward(
          *stream, step,
          std::span(tokens).subspan(static_cast<size_t>(past), static_cast<size_t>(rows)),
          positions, cache, {}, {});
    };
    // The first recorded step ends the prompt: its rows fill the slots.
    forward(0, n - steps + 1, false);
    for (int64_t past = n - steps + 1; past < n; ++past) forward(past, 1, true);

    Counts cached, replayed;
    for (const kv::HeadCounters& head : lite->Heads()) {
      cached.lookups += static_cast<double>(head.lookups);
      cached.hits += static_cast<double>(head.hits);
      cached.verified += static_cast<double>(head.verified);
      cached.corrected += static_cast<double>(head.corrected);
      cached.moved += static_cast<double>(head.rows_moved);
    }
    const kv::HeadPlan& heads = *plan->heads();
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      for (int64_t head = 0; head < config.kv_heads; ++head) {
        std::vector<int64_t> q_heads;
        for (int64_t j = 0; j < config.group(); ++j) q_heads.push_back(head * config.group() + j);
        HeadReplay replay(
            trace,
            {.place = TraceMap(trace, layout)
                          .Predicted(layer, heads.sources[static_cast<size_t>(layer)]),
             .kv_head = head,
             .q_heads = q_heads,
             .check = kv::PredictionCheck{0.5f, 0.03f},
             .importance = heads.importance.data() + layer * config.q_heads + q_heads.front(),
             .tau = heads.at(layer, head).tau,
             .slots_factor = slots},
            0);
        for (int64_t step = 1; step < steps; ++step) {
          const auto rows = static_cast<double>(trace.Rows(layer, head, step).size());
          const auto moved = [&](const ops::ForcedHead& forced) {
            return forced.hit == 0 ? rows * (1 - double(forced.kept) / ops::ForcedHead::kWhole) : 0;
          };
          const HeadReplay::Result result = replay.Step(step);
          replayed.lookups += 1;
          replayed.hits += result.lookup.hit;
          replayed.moved += moved(result.lookup) + moved(result.check);
          if (result.check.hit < 0) continue;
          replayed.verified += 1;
          replayed.corrected += 1 - result.check.hit;
        }
      }
    }
    EXPECT_EQ(cached.lookups, replayed.lookups) << eta;
    EXPECT_EQ(cached.verified, replayed.verified) << eta;
    // Cosines are recorded in steps of 1/127, and beyond 4 steps from a choice of rows estimated:
    // at low thresholds, which reuse rows for longer, the two drift apart.
    const bool old_rows = eta < 0.5;
    const double tolerance = (old_rows ? 0.1 : 0.05) * cached.lookups;
    EXPECT_NEAR(replayed.hits, cached.hits, tolerance) << eta;
    EXPECT_NEAR(replayed.corrected, cached.corrected, tolerance) << eta;
    EXPECT_NEAR(replayed.moved, cached.moved, (old_rows ? 0.4 : 0.08) * cached.moved) << eta;
    hits += cached.hits;
    misses += cached.lookups - cached.hits;
    corrected += cached.corrected;
    confirmed += cached.verified - cached.corrected;
  }
  for (const double count : {hits, misses, corrected, confirmed}) EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace litecache::lab
