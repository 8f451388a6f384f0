// Traces mapped to other shapes, and QSAC replayed on them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "lab/tests/random_trace.h"
#include "lab/trace/replay.h"
#include "lab/trace/replays_trace.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

// The position of step `t` in 0, 1, .., S - 1, S - 2, .., 1, 0, 1, ...
std::vector<int64_t> ForthAndBack(int64_t steps) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < steps; ++i) order.push_back(i);
  for (int64_t i = steps - 2; i > 0; --i) order.push_back(i);
  return order;
}

TEST(TraceReplay, IsQsacOnTheRecordedSteps) {
  std::mt19937_64 random = testing::TestRandom();
  int64_t corrected = 0, confirmed = 0;
  for (int round = 0; round < 60; ++round) {
    const Trace t = RandomTrace(random);
    std::uniform_real_distribution<float> tau(-1, 1);
    std::optional<PredictionCheck> check;
    if (round % 3 != 0) check = {.least_tau = tau(random), .margin = round % 2 == 0 ? 0.0f : 0.2f};
    const int64_t group = t.group();
    const Layout layout{t.layers, t.q_heads, t.kv_heads, 16};
    HeadPlan plan;
    plan.layers = t.layers;
    plan.kv_heads = t.kv_heads;
    plan.importance = t.importance;
    for (int64_t layer = 0; layer < t.layers; ++layer) {
      const int64_t ahead = static_cast<int64_t>(random() % 4);
      plan.sources.push_back(ahead == 0 ? -1 : std::max<int64_t>(layer - ahead, -1));
    }
    for (int64_t i = 0; i < t.layers * t.kv_heads; ++i) {
      plan.heads.push_back({.resident = random() % 5 == 0, .tau = tau(random)});
    }
    ops::SlotWindows<int64_t> windows;
    if (round % 2 == 1) windows.slots_factor = 1.5;
    const ForcedReuse reuse = ReplayReuse(t, layout, plan, windows, ops::Aggregation::kMin, check);
    const TraceMap map(t, layout);
    const auto order = ForthAndBack(t.steps);
    const auto period = static_cast<int64_t>(order.size());
    ASSERT_EQ(reuse.steps, period);
    ASSERT_EQ(reuse.checks.size(), reuse.heads.size());
    for (int64_t layer = 0; layer < t.layers; ++layer) {
      const TraceMap::Place place = map.Predicted(layer, plan.sources[static_cast<size_t>(layer)]);
      for (int64_t head = 0; head < t.kv_heads; ++head) {
        const auto at = [&](int64_t step) {
          return static_cast<size_t>((step % period) * t.layers * t.kv_heads + layer * t.kv_heads +
                                     head);
        };
        if (plan.at(layer, head).resident) {
          for (int64_t step = 0; step < period; ++step) {
            EXPECT_LT(reuse.heads[at(step)].hit, 0);
            EXPECT_LT(reuse.checks[at(step)].hit, 0);
          }
          continue;
        }
        const int64_t offset = (layer * t.kv_heads + head) * period / (t.layers * t.kv_heads);
        TraceQuery label{order[static_cast<size_t>(offset)], 0};
        // All rows have been selected before those that are replaced.
        std::vector<int32_t> slots;
        size_t next = 0;
        const auto refresh = [&](TraceQuery q) {
          const auto& rows = t.Rows(place.layer, head, q);
          const auto is_wanted = [&](int32_t row) { return std::ranges::count(rows, row) > 0; };
          const auto room =
              static_cast<size_t>(windows.slots_factor * static_cast<double>(rows.size()));
          int64_t held = 0;
          std::vector<int32_t> missing;
          for (const int32_t row : rows) {
            if (std::ranges::count(slots, row) > 0) {
              ++held;
            } else {
              missing.push_back(row);
            }
          }
          for (const int32_t row : missing) {
            if (slots.size() < room) {
              slots.push_back(row);
              continue;
            }
            next %= slots.size();
            while (is_wanted(slots[next])) next = (next + 1) % slots.size();
            slots[next++] = row;
          }
          return static_cast<double>(held) / static_cast<double>(rows.size());
        };
        refresh(label);
        // Returns whether the query hits; compares the result if it is one of the second round,
        // which starts in the state at the end of the first.
        const auto look_up = [&](TraceQuery q, float margin, float least_tau,
                                 const ops::ForcedHead& forced, bool compare) {
          float least = 2;
          for (int64_t j = 0; j < group; ++j) {
            least = std::min(least, t.Cosine(place.layer, head * group + j, q, label));
          }
          const bool hit = least > std::max(plan.at(layer, head).tau - margin, least_tau);
          if (compare) {
            EXPECT_EQ(forced.hit, hit ? 1 : 0);
          }
          if (hit) return true;
          label = q;
          const double held = refresh(q);
          if (compare) {
            EXPECT_NEAR(forced.kept, held * ops::ForcedHead::kWhole, 1);
          }
          return false;
        };
        for (int64_t step = 0; step < 2 * period; ++step) {
          const int64_t now = order[static_cast<size_t>((step + offset) % period)];
          const bool compare = step >= period;
          const bool checks = place.distance > 0 && check;
          const bool hit = look_up({now, place.distance}, 0, -1, reuse.heads[at(step)], compare);
          if (checks) {
            const float least_tau = hit ? -1 : check->least_tau;
            ++(look_up({now, 0}, check->margin, least_tau, reuse.checks[at(step)], compare)
                   ? confirmed
                   : corrected);
          } else {
            EXPECT_LT(reuse.checks[at(step)].hit, 0);
          }
        }
      }
    }
  }
  EXPECT_GT(corrected, 0);
  EXPECT_GT(confirmed, 0);
}

TEST(TraceReplay, PredictedLayersKeepTheirDistanceAndTheFirstSourcesTheirNumber) {
  Trace t;
  t.layers = 30;
  t.distances = 4;
  t.q_heads = t.kv_heads = 1;
  t.steps = 2;
  const TraceMap same(t, {30, 1, 1, 16});
  for (int64_t layer = 1; layer < 30; ++layer) {
    EXPECT_EQ(same.Predicted(layer, -1).distance, 0);
    for (int64_t source = std::max<int64_t>(layer - 4, 0); source < layer; ++source) {
      EXPECT_EQ(same.Predicted(layer, source).layer, layer);
      EXPECT_EQ(same.Predicted(layer, source).distance, layer - source);
    }
  }
  const TraceMap deeper(t, {60, 1, 1, 16});
  EXPECT_EQ(deeper.Layer(3), 1);
  EXPECT_EQ(deeper.Predicted(3, 2).layer, 3);
  EXPECT_EQ(deeper.Predicted(4, 2).layer, 4);
  EXPECT_EQ(deeper.Predicted(5, 1).layer, 5);  // from layer 1 as well
  EXPECT_EQ(deeper.Predicted(59, 57).layer, 29);
  t.layers = 3;
  t.distances = 2;
  const TraceMap shallow(t, {30, 1, 1, 16});
  EXPECT_EQ(shallow.Predicted(29, 25).layer, 2);
  EXPECT_EQ(shallow.Predicted(29, 25).distance, 2);
  EXPECT_EQ(shallow.Predicted(3, 2).layer, 2);
  t.layers = 1;
  t.distances = 0;
  const TraceMap flat(t, {30, 1, 1, 16});
  EXPECT_EQ(flat.Predicted(7, -1).layer, 0);
  EXPECT_ERROR(flat.Predicted(7, 5), InvalidArgument, "--prefetch off");
}

TEST(TraceReplay, OtherShapesTakeTheNearestLayerAndTheHeadModulo) {
  std::mt19937_64 random = testing::TestRandom();
  Trace t = RandomTrace(random);
  for (const int64_t layers : {1, 2, 7, 32}) {
    const Layout layout{layers, 24, 6, 16};
    const TraceMap map(t, layout);
    const Profile p = ProfileOf(t, layout);
    ASSERT_EQ(p.importance.size(), static_cast<size_t>(layers * 24));
    ASSERT_EQ(p.similarity.size(), static_cast<size_t>(layers * 6));
    for (int64_t layer = 0; layer < layers; ++layer) {
      // Nearest: no other layer is nearer.
      const double depth =
          layers == 1 ? 0 : static_cast<double>(layer) / static_cast<double>(layers - 1);
      const auto distance = [&](int64_t l) {
        return std::abs(depth - (t.layers == 1
                                     ? 0
                                     : static_cast<double>(l) / static_cast<double>(t.layers - 1)));
      };
      const int64_t mapped = map.Layer(layer);
      ASSERT_GE(mapped, 0);
      ASSERT_LT(mapped, t.layers);
      if (t.layers > 1) {
        for (int64_t l = 0; l < t.layers; ++l) EXPECT_LE(distance(mapped), distance(l) + 1e-9);
      }
      for (int64_t head = 0; head < 6; ++head) {
        for (int64_t j = 0; j < 4; ++j) {
          EXPECT_EQ(p.importance[static_cast<size_t>(layer * 24 + head * 4 + j)],
                    t.importance[static_cast<size_t>(
                        mapped * t.q_heads + (head % t.kv_heads) * t.group() + j % t.group())]);
        }
      }
    }
  }
}

TEST(TraceReplay, SimilaritiesAreMeansOverAdjacentSteps) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 20; ++round) {
    const Trace t = RandomTrace(random);
    const int64_t group = t.group();
    const Profile p = ProfileOf(t, {t.layers, t.q_heads, t.kv_heads, 16});
    ASSERT_EQ(p.similarity.size(), static_cast<size_t>(t.layers * t.kv_heads));
    ASSERT_EQ(p.similarity_q.size(), static_cast<size_t>(t.layers * t.q_heads));
    for (int64_t i = 0; i < t.layers * t.kv_heads; ++i) {
      const int64_t layer = i / t.kv_heads, head = i % t.kv_heads * group;
      std::vector<double> sums(static_cast<size_t>(group));
      double sum = 0;
      for (int64_t step = 1; step < t.steps; ++step) {
        std::vector<float> cosines;
        for (int64_t j = 0; j < group; ++j) {
          cosines.push_back(t.Cosine(layer, head + j, step - 1, step));
          sums[static_cast<size_t>(j)] += double{cosines.back()};
        }
        sum += double{ops::AggregateSimilarity(ops::Aggregation::kImportance, cosines,
                                               t.importance.data() + layer * t.q_heads + head)};
      }
      const auto count = static_cast<double>(t.steps - 1);
      EXPECT_NEAR(p.similarity[static_cast<size_t>(i)], sum / count, 1e-6);
      for (int64_t j = 0; j < group; ++j) {
        EXPECT_NEAR(p.similarity_q[static_cast<size_t>(i * group + j)],
                    sums[static_cast<size_t>(j)] / count, 1e-6);
      }
    }
  }
}

TEST(TraceReplay, IsForPoliciesThatSelect) {
  std::mt19937_64 random = testing::TestRandom();
  const auto trace = std::make_shared<const Trace>(RandomTrace(random, true));
  const Layout layout{
      .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32, .hidden = 64};
  for (const auto& [policy, selects] :
       std::vector<std::pair<std::string, bool>>{{"full", false},
                                                 {"streaming", false},
                                                 {"flexgen", false},
                                                 {"kvpr", false},
                                                 {"litecache", true},
                                                 {"infinigen", true},
                                                 {"pqcache", true},
                                                 {"retroinfer", true}}) {
    KvOptions options;
    options.policy = policy;
    const auto plan = MakeCachePlan(layout, options, nullptr);
    EXPECT_EQ(ReplayTrace(plan.get(), trace), selects) << policy;
  }
}

}  // namespace
}  // namespace litecache::lab
