// Compares the simulation with a plain implementation of the whole QSAC step in double precision.
#include "profile/threshold_curves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "device/cpu/cpu_device.h"
#include "profile/similarity.h"
#include "profile/top_rows.h"
#include "small_model.h"
#include "test_seed.h"

namespace litecache::profile {
namespace {

struct Case {
  int64_t group = 3, d = 10, n = 91, steps = 37;
  std::vector<float> keys, actual, predicted, importance;
  CurveOptions options;

  HeadRecording Head(bool ahead) const {
    return {group,
            d,
            n,
            steps,
            0.4f,
            keys.data(),
            actual.data(),
            ahead ? predicted.data() : actual.data(),
            importance.data()};
  }
};

// Queries that rotate slowly, with occasional jumps.
Case RandomCase(std::mt19937_64& random) {
  Case c;
  c.group = 1 + static_cast<int64_t>(random() % 4);
  c.steps = 5 + static_cast<int64_t>(random() % 60);  // sometimes more than a block of scores
  c.n = c.steps + 1 + static_cast<int64_t>(random() % 70);
  c.keys = testing::Normal(random, static_cast<size_t>(c.n * c.d), 1.5f);
  const auto width = static_cast<size_t>(c.group * c.d);
  std::vector<float> q = testing::Normal(random, width, 1.5f);
  for (int64_t t = 0; t < c.steps; ++t) {
    const float turn = random() % 7 == 0 ? 3.0f : 0.4f;
    const auto change = testing::Normal(random, width, turn);
    for (size_t i = 0; i < width; ++i) q[i] = 0.9f * q[i] + change[i];
    c.actual.insert(c.actual.end(), q.begin(), q.end());
    const auto miss = testing::Normal(random, width, 0.3f);
    for (size_t i = 0; i < width; ++i) c.predicted.push_back(q[i] + miss[i]);
  }
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int64_t j = 0; j < c.group; ++j) c.importance.push_back(uniform(random));
  c.options.budget = random() % 2 == 0 ? KvBudget{.share = 0.2} : KvBudget{.tokens = 9};
  c.options.sink_tokens = 2;
  c.options.recent_tokens = 5;
  return c;
}

double Exponent(const Case& c, const float* q, int64_t row) {
  double dot = 0;
  for (int64_t i = 0; i < c.d; ++i)
    dot += double{q[i]} * double{c.keys[static_cast<size_t>(row * c.d + i)]};
  return std::exp(0.4f * dot);
}

// The exact retriever's selection at step t.
std::set<int64_t> Retrieve(const Case& c, const float* q, int64_t t) {
  const int64_t context = c.n - c.steps + t + 1;
  const int64_t begin = std::min<int64_t>(2, context), end = std::max(begin, context - 5);
  const int64_t k = std::min(c.options.budget.RowsFor(context), end - begin);
  std::vector<double> score(static_cast<size_t>(end - begin));
  for (int64_t j = 0; j < c.group; ++j) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += Exponent(c, q + j * c.d, i);
    for (int64_t i = begin; i < end; ++i) {
      score[static_cast<size_t>(i - begin)] += Exponent(c, q + j * c.d, i) / sum;
    }
  }
  std::vector<int64_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  std::set<int64_t> rows;
  for (int64_t i = 0; i < k; ++i) rows.insert(begin + order[static_cast<size_t>(i)]);
  return rows;
}

// The mass of sink, recent and `rows` under the step's actual query head.
double Mass(const Case& c, int64_t j, int64_t t, std::set<int64_t> rows) {
  const int64_t context = c.n - c.steps + t + 1;
  for (int64_t i = 0; i < context; ++i) {
    if (i < 2 || i >= std::max<int64_t>(2, context - 5)) rows.insert(i);
  }
  double sum = 0;
  for (const int64_t row : rows) {
    sum += Exponent(c, c.actual.data() + (t * c.group + j) * c.d, row);
  }
  return sum;
}

double Similarity(const Case& c, const float* a, const float* b) {
  double weights = 0, inverse = 0, least = 2;
  for (int64_t j = 0; j < c.group; ++j) {
    double dot = 0, aa = 0, bb = 0;
    for (int64_t i = j * c.d; i < (j + 1) * c.d; ++i) {
      dot += double{a[i]} * double{b[i]};
      aa += double{a[i]} * double{a[i]};
      bb += double{b[i]} * double{b[i]};
    }
    const double cosine = dot / std::sqrt(aa * bb);
    weights += double{c.importance[static_cast<size_t>(j)]};
    inverse += double{c.importance[static_cast<size_t>(j)]} / cosine;
    least = std::min(least, cosine);
  }
  return least <= 0 ? least : weights / inverse;
}

TEST(ThresholdCurvesTest, AgreesWithThePlainStep) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  for (int round = 0; round < 12; ++round) {
    const Case c = RandomCase(random);
    for (const bool ahead : {false, true}) {
      HeadCurve curve;
      StepSets sets;
      AddThresholdCurve(*stream, c.Head(ahead), c.options, &curve, &sets);
      ASSERT_EQ(curve.lookups, c.steps - 1);
      const int64_t width = c.group * c.d;
      const float* lookup = (ahead ? c.predicted : c.actual).data();
      for (size_t g = 0; g < c.options.thresholds.size(); ++g) {
        const double tau = double{c.options.thresholds[g]};
        double kept = 0;
        int64_t hits = 0, label = 0;
        bool close = false;  // a similarity is at the threshold, where rounding decides
        std::set<int64_t> rows = Retrieve(c, lookup, 0);
        for (int64_t t = 1; t < c.steps; ++t) {
          const double similarity = Similarity(c, lookup + t * width, lookup + label * width);
          close = close || std::abs(similarity - tau) < 1e-5;
          if (similarity > tau) {
            ++hits;
          } else {
            label = t;
            rows = Retrieve(c, lookup + t * width, t);
          }
          const auto fresh = Retrieve(c, c.actual.data() + t * width, t);
          for (int64_t j = 0; j < c.group; ++j) {
            kept += Mass(c, j, t, rows) / Mass(c, j, t, fresh) / static_cast<double>(c.group);
          }
        }
        if (close) continue;
        EXPECT_EQ(curve.hits[g], static_cast<double>(hits)) << tau;
        EXPECT_NEAR(curve.kept[g], kept, 1e-4 * static_cast<double>(c.steps)) << tau;
      }
      for (int64_t t = 0; t < c.steps; ++t) {
        const auto fresh = Retrieve(c, c.actual.data() + t * width, t);
        EXPECT_TRUE(std::equal(fresh.begin(), fresh.end(), sets[static_cast<size_t>(t)].begin(),
                               sets[static_cast<size_t>(t)].end()))
            << t;
      }
    }
  }
}

TEST(ThresholdCurvesTest, EndsOfTheScaleAndOrder) {
  std::mt19937_64 random = testing::TestRandom(1);
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  for (int round = 0; round < 8; ++round) {
    Case c = RandomCase(random);
    // Cosines of the same sign, so that -1 always hits.
    for (float& x : c.actual) x = std::abs(x);
    HeadCurve curve;
    AddThresholdCurve(*stream, c.Head(false), c.options, &curve, nullptr);
    const auto lookups = static_cast<double>(curve.lookups);
    EXPECT_EQ(c.options.thresholds.front(), -1);
    EXPECT_EQ(curve.hits.front(), lookups);
    EXPECT_EQ(c.options.thresholds.back(), 1);
    EXPECT_EQ(curve.hits.back(), 0);
    EXPECT_NEAR(curve.kept.back(), lookups, 1e-9 * lookups);
    for (const double kept : curve.kept) {
      EXPECT_GE(kept, 0);
      // Exact rows hold the most mass per head, but for a group others may hold slightly more.
      EXPECT_LE(kept, lookups * 1.01);
    }
    // A higher threshold refreshes at the first step whenever a lower one does.
    const auto held = SimulateLookups(c.Head(false), c.options);
    for (size_t g = 1; g < held.size(); ++g) EXPECT_GE(held[g][1], held[g - 1][1]);
  }
}

TEST(ThresholdCurvesTest, RecordingsAdd) {
  std::mt19937_64 random = testing::TestRandom(2);
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  const Case a = RandomCase(random), b = RandomCase(random);
  HeadCurve first, second, both;
  AddThresholdCurve(*stream, a.Head(true), a.options, &first, nullptr);
  AddThresholdCurve(*stream, b.Head(true), b.options, &second, nullptr);
  AddThresholdCurve(*stream, a.Head(true), a.options, &both, nullptr);
  AddThresholdCurve(*stream, b.Head(true), b.options, &both, nullptr);
  EXPECT_EQ(both.lookups, first.lookups + second.lookups);
  for (size_t g = 0; g < both.kept.size(); ++g) {
    EXPECT_NEAR(both.kept[g], first.kept[g] + second.kept[g], 1e-9);
    EXPECT_EQ(both.hits[g], first.hits[g] + second.hits[g]);
  }
}

TEST(AdjacentSimilarityTest, IsTheMeanOverPairs) {
  std::mt19937_64 random = testing::TestRandom(3);
  const Case c = RandomCase(random);
  AdjacentSimilarity similarity;
  similarity.Add(ops::Aggregation::kImportance, c.steps, c.group, c.d, c.actual.data(),
                 c.importance.data());
  EXPECT_EQ(similarity.pairs, c.steps - 1);
  const int64_t width = c.group * c.d;
  double sum = 0;
  for (int64_t t = 1; t < c.steps; ++t) {
    sum += Similarity(c, c.actual.data() + t * width, c.actual.data() + (t - 1) * width);
  }
  EXPECT_NEAR(similarity.group, sum, 1e-4 * static_cast<double>(c.steps));
  for (const double head : similarity.heads) EXPECT_LE(std::abs(head), similarity.pairs);
  const std::vector<float> zero(static_cast<size_t>(c.d));
  EXPECT_EQ(Cosine(zero.data(), c.actual.data(), c.d), 0);
  EXPECT_NEAR(Cosine(c.actual.data(), c.actual.data(), c.d), 1, 1e-6);
}

TEST(TopRowsTest, TakesTheLargestAndTheLowerOfEqualOnes) {
  std::vector<float> scratch;
  std::vector<int32_t> rows;
  const std::vector<float> scores = {1, 3, 2, 3, 2, 2, 0};
  SelectLargest(scores.data(), 7, 4, 10, scratch, &rows);
  EXPECT_EQ(rows, (std::vector<int32_t>{11, 12, 13, 14}));
  SelectLargest(scores.data(), 7, 7, 0, scratch, &rows);
  EXPECT_EQ(rows.size(), 7u);
  SelectLargest(scores.data(), 7, 0, 0, scratch, &rows);
  EXPECT_TRUE(rows.empty());
  EXPECT_EQ(CountCommon({1, 3, 5, 9}, {0, 3, 4, 5}), 2);
  EXPECT_EQ(CountCommon({}, {1}), 0);
}

}  // namespace
}  // namespace litecache::profile
