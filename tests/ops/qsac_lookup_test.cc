#include "ops/reuse/qsac_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

constexpr Aggregation kAggregations[] = {Aggregation::kImportance, Aggregation::kHarmonic,
                                         Aggregation::kMean, Aggregation::kMin};

double CosineOf(const float* q, const float* label, int64_t n) {
  long double dot = 0, qq = 0, ll = 0;
  for (int64_t i = 0; i < n; ++i) {
    dot += static_cast<long double>(q[i]) * label[i];
    qq += static_cast<long double>(q[i]) * q[i];
    ll += static_cast<long double>(label[i]) * label[i];
  }
  if (qq == 0 || ll == 0) return 0;
  return static_cast<double>(dot / std::sqrt(qq * ll));
}

// Equation 2 and its exceptions, literally.
double AggregateOf(Aggregation aggregation, const std::vector<double>& s,
                   const std::vector<float>& importance) {
  if (aggregation == Aggregation::kMin) return *std::min_element(s.begin(), s.end());
  double sum = 0;
  if (aggregation == Aggregation::kMean) {
    for (double x : s) sum += x;
    return sum / static_cast<double>(s.size());
  }
  std::vector<double> weights(importance.begin(), importance.end());
  if (aggregation == Aggregation::kHarmonic ||
      std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0; })) {
    std::fill(weights.begin(), weights.end(), 1.0);
  }
  double smallest = 2, total = 0;
  for (size_t j = 0; j < s.size(); ++j) {
    if (weights[j] == 0) continue;
    smallest = std::min(smallest, s[j]);
    total += weights[j];
    sum += weights[j] / s[j];
  }
  return smallest <= 0 ? smallest : total / sum;
}

struct Heads {
  int64_t group, head_dim;
  std::vector<float> q, label, importance;
  std::vector<float> tau;

  Heads(int64_t count, int64_t group, int64_t head_dim)
      : group(group),
        head_dim(head_dim),
        q(static_cast<size_t>(count * group * head_dim)),
        label(q.size()),
        importance(static_cast<size_t>(count * group)),
        tau(static_cast<size_t>(count)) {}

  std::vector<LookupWork> Work() {
    std::vector<LookupWork> work(tau.size());
    for (size_t i = 0; i < work.size(); ++i) {
      work[i] = {.q = q.data() + static_cast<int64_t>(i) * group * head_dim,
                 .label = label.data() + static_cast<int64_t>(i) * group * head_dim,
                 .importance = importance.data() + static_cast<int64_t>(i) * group,
                 .tau = tau[i]};
    }
    return work;
  }
};

// Labels at any angle to the queries; some zero vectors, some zero weights.
Heads MakeHeads(Random& random, int64_t count, int64_t group, int64_t head_dim) {
  Heads heads(count, group, head_dim);
  for (int64_t i = 0; i < count; ++i) {
    const bool no_weights = random.Integer(0, 5) == 0;
    for (int64_t j = 0; j < group; ++j) {
      const auto row = static_cast<size_t>((i * group + j) * head_dim);
      const float noise = std::exp2(static_cast<float>(random.Integer(-6, 2)));
      const float size = std::exp2(static_cast<float>(random.Integer(-30, 30)));
      const float sign = random.Integer(0, 40) == 0 ? -1.0f : 1.0f;
      for (int64_t c = 0; c < head_dim; ++c) {
        const float x = random.Normal();
        heads.label[row + static_cast<size_t>(c)] = x * sign;
        heads.q[row + static_cast<size_t>(c)] = (x + random.Normal(noise)) * size;
      }
      if (random.Integer(0, 50) == 0) std::fill_n(heads.q.begin() + row, head_dim, 0.0f);
      if (random.Integer(0, 50) == 0) std::fill_n(heads.label.begin() + row, head_dim, 0.0f);
      const bool zero = no_weights || random.Integer(0, 3) == 0;
      heads.importance[static_cast<size_t>(i * group + j)] =
          zero ? 0.0f : static_cast<float>(random.Integer(1, 100)) / 100;
    }
    heads.tau[static_cast<size_t>(i)] = static_cast<float>(random.Integer(-100, 100)) / 100;
  }
  return heads;
}

TEST(QsacLookup, MatchesTheEquations) {
  Random random(80);
  for (int64_t head_dim : {1, 5, 16, 64, 80, 128, 131}) {
    for (int64_t group : {1, 2, 4, 7, 8}) {
      for (int64_t count : {1, 12, 300}) {
        const Heads before = MakeHeads(random, count, group, head_dim);
        for (Aggregation aggregation : kAggregations) {
          ForEachIsa(2, [&](Stream& stream) {
            Heads heads = before;
            auto work = heads.Work();
            QsacLookup(stream, group, head_dim, aggregation, work);
            int64_t hits = 0;
            for (int64_t i = 0; i < count; ++i) {
              const LookupWork& w = work[static_cast<size_t>(i)];
              std::vector<double> s;
              double tiny = 1;  // a similarity near 0 may be on either side of it
              for (int64_t j = 0; j < group; ++j) {
                const int64_t row = (i * group + j) * head_dim;
                s.push_back(CosineOf(before.q.data() + row, before.label.data() + row, head_dim));
                if (s.back() != 0) tiny = std::min(tiny, std::abs(s.back()));
              }
              const std::vector<float> importance(before.importance.begin() + i * group,
                                                  before.importance.begin() + (i + 1) * group);
              // A sum of n products has an error of at most n 2^-24; the harmonic mean amplifies an
              // error by at most the group size.
              const double bound =
                  std::ldexp(static_cast<double>(head_dim + 4), -24) * static_cast<double>(group);
              if (tiny > 10 * bound) {
                ASSERT_NEAR(w.similarity, AggregateOf(aggregation, s, importance), bound)
                    << "head_dim " << head_dim << ", group " << group << ", aggregation "
                    << static_cast<int>(aggregation) << ", head " << i;
              }
              ASSERT_EQ(w.hit, w.similarity > w.tau);
              hits += w.hit;
              const auto& expected = w.hit ? before.label : before.q;
              ASSERT_TRUE(std::equal(expected.begin() + i * group * head_dim,
                                     expected.begin() + (i + 1) * group * head_dim,
                                     heads.label.begin() + i * group * head_dim))
                  << "label of head " << i;
            }
            if (count == 300) {
              EXPECT_GT(hits, 0);
              EXPECT_LT(hits, 300);
            }
          });
        }
      }
    }
  }
}

// The same query again: exactly 1, so tau = 1 always refreshes and any lower value never does.
TEST(QsacLookup, EqualVectorsAreExactlyOne) {
  Random random(81);
  for (int64_t head_dim : {1, 3, 64, 100, 128}) {
    Heads heads(40, 4, head_dim);
    for (size_t i = 0; i < heads.q.size(); ++i) heads.q[i] = random.Normal();
    heads.label = heads.q;
    std::fill(heads.importance.begin(), heads.importance.end(), 0.5f);
    for (size_t i = 0; i < heads.tau.size(); ++i) {
      heads.tau[i] = i % 2 == 0 ? 1.0f : std::nextafter(1.0f, 0.0f);
    }
    ForEachIsa(1, [&](Stream& stream) {
      auto work = heads.Work();
      QsacLookup(stream, 4, head_dim, Aggregation::kHarmonic, work);
      for (size_t i = 0; i < work.size(); ++i) {
        EXPECT_EQ(work[i].similarity, 1.0f);
        EXPECT_EQ(work[i].hit, i % 2 == 1);
      }
    });
  }
}

// Squares outside f32's range on both sides, and NaNs.
TEST(QsacLookup, VectorsOfAnySize) {
  Random random(82);
  const int64_t head_dim = 67;
  for (float size : {1e-44f, 1e-38f, 1e-25f, 1e-19f, 1e19f, 1e30f, 1e37f}) {
    Heads heads(3, 2, head_dim);
    for (size_t i = 0; i < heads.q.size(); ++i) {
      const auto x = static_cast<float>(random.Integer(-9, 9));
      heads.label[i] = x * size;
      heads.q[i] = (x + static_cast<float>(random.Integer(-3, 3))) * size;
    }
    const Heads before = heads;
    ForEachIsa(1, [&](Stream& stream) {
      Heads now = before;
      auto work = now.Work();
      QsacLookup(stream, 2, head_dim, Aggregation::kMean, work);
      for (size_t i = 0; i < 3; ++i) {
        const float* q = before.q.data() + i * 2 * head_dim;
        const float* label = before.label.data() + i * 2 * head_dim;
        const double expected =
            (CosineOf(q, label, head_dim) + CosineOf(q + head_dim, label + head_dim, head_dim)) / 2;
        EXPECT_NEAR(work[i].similarity, expected, 1e-5) << "size " << size;
      }
    });
  }
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Heads heads(1, 1, head_dim);
    std::fill(heads.q.begin(), heads.q.end(), 1.0f);
    heads.label = heads.q;
    heads.q[40] = bad;
    heads.tau[0] = -1.0f;
    ForEachIsa(1, [&](Stream& stream) {
      for (Aggregation aggregation : kAggregations) {
        Heads now = heads;
        auto work = now.Work();
        QsacLookup(stream, 1, head_dim, aggregation, work);
        EXPECT_FALSE(work[0].hit);
        EXPECT_FALSE(std::isnan(work[0].similarity));
      }
    });
  }
}

TEST(AggregateSimilarity, Rules) {
  const float s[] = {0.5f, 0.25f, -0.5f, 0.0f};
  const float weights[] = {0.75f, 0.25f, 0.0f, 0.0f}, none[4] = {};
  const auto aggregate = [&](Aggregation a, size_t first, size_t count, const float* importance) {
    return AggregateSimilarity(a, {s + first, count}, importance);
  };
  // 1 / (0.75 / 0.5 + 0.25 / 0.25) = 0.4; similarities with weight 0 do not count.
  EXPECT_FLOAT_EQ(aggregate(Aggregation::kImportance, 0, 4, weights), 0.4f);
  EXPECT_FLOAT_EQ(aggregate(Aggregation::kImportance, 0, 2, none), 1 / 3.0f);
  EXPECT_FLOAT_EQ(aggregate(Aggregation::kHarmonic, 0, 2, nullptr), 1 / 3.0f);
  // A negative similarity or a 0 with a weight: the smallest value.
  EXPECT_EQ(aggregate(Aggregation::kHarmonic, 0, 4, nullptr), -0.5f);
  EXPECT_EQ(aggregate(Aggregation::kImportance, 0, 4, none), -0.5f);
  EXPECT_EQ(AggregateSimilarity(Aggregation::kHarmonic, std::span(&s[3], 1), nullptr), 0.0f);
  EXPECT_FLOAT_EQ(aggregate(Aggregation::kMean, 0, 4, nullptr), 0.0625f);
  EXPECT_EQ(aggregate(Aggregation::kMin, 0, 4, nullptr), -0.5f);
  // The smallest positive similarity does not overflow.
  const float smallest[] = {std::numeric_limits<float>::denorm_min(), 1.0f};
  EXPECT_GT(AggregateSimilarity(Aggregation::kHarmonic, smallest, nullptr), 0.0f);
}

}  // namespace
}  // namespace litecache::ops
