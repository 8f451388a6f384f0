#include "profile/recall.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "device/cpu/cpu_device.h"
#include "profile/hata_training.h"
#include "small_model.h"
#include "test_seed.h"

namespace litecache::profile {
namespace {

constexpr int64_t kGroup = 3, kD = 12, kN = 120, kSteps = 17;

struct Fixture {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device{2};
  std::unique_ptr<Stream> stream = device.CreateStream();
  std::vector<float> keys = testing::Normal(random, kN* kD, 1.5f);
  std::vector<float> queries = testing::Normal(random, kSteps* kGroup* kD, 1.5f);
  std::vector<float> importance = {1, 1, 1};
  CurveOptions options{.budget = {.share = 0.2}, .sink_tokens = 2, .recent_tokens = 5};
  HeadRecording head{
      kGroup, kD, kN, kSteps, 0.3f, keys.data(), queries.data(), queries.data(), importance.data()};
  StepSets exact;

  Fixture() {
    HeadCurve curve;
    AddThresholdCurve(*stream, head, options, &curve, &exact);
  }

  // Mean share of the exact rows among the best by `score(step, row)`, over every `stride`-th step.
  template <typename Score>
  double Plain(int64_t stride, Score score) const {
    double sum = 0;
    int64_t count = 0;
    for (int64_t t = 0; t < kSteps; t += stride, ++count) {
      const StepRange range = RangeOf(head, options, t);
      std::vector<std::pair<double, int64_t>> order;
      for (int64_t i = range.begin; i < range.end; ++i) order.emplace_back(-score(t, i), i);
      std::sort(order.begin(), order.end());
      const auto& rows = exact[static_cast<size_t>(t)];
      int64_t found = 0;
      for (int64_t i = 0; i < range.k; ++i) {
        found += std::count(rows.begin(), rows.end(), order[static_cast<size_t>(i)].second);
      }
      sum += static_cast<double>(found) / static_cast<double>(rows.size());
    }
    return sum / static_cast<double>(count);
  }
};

TEST(RecallTest, HataCountsBits) {
  Fixture f;
  constexpr int64_t kBits = 70;  // more than a word
  const auto w = RandomProjection(kD, kBits, f.random());
  const auto bit = [&](const float* x, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < kD; ++i)
      sum += double{x[i]} * double{w[static_cast<size_t>(i * kBits + b)]};
    return sum > 0;
  };
  for (const bool norms : {true, false}) {
    Recall recall;
    AddHataRecall(*f.stream, {f.head, f.options, f.exact, 4}, w, kBits, norms, &recall);
    EXPECT_EQ(recall.steps, 5);
    const double plain = f.Plain(4, [&](int64_t t, int64_t row) {
      const float* key = f.keys.data() + row * kD;
      double differ = 0, norm = 0;
      for (int64_t j = 0; j < kGroup; ++j) {
        for (int64_t b = 0; b < kBits; ++b) {
          differ += bit(f.queries.data() + (t * kGroup + j) * kD, b) != bit(key, b);
        }
      }
      for (int64_t i = 0; i < kD; ++i) norm += double{key[i]} * double{key[i]};
      // Rounded to f32, so that equal scores are equal.
      return norms ? double{static_cast<float>((kGroup - 2 * differ / kBits) *
                                               double{static_cast<float>(std::sqrt(norm))})}
                   : -differ;
    });
    // A row whose product with a projection rounds to the other sign changes a set by one element.
    EXPECT_NEAR(recall.mean(), plain, 0.02);
  }
}

TEST(RecallTest, LokiWithAllComponentsIsExact) {
  Fixture f;
  std::vector<float> identity(kD * kD);
  for (size_t i = 0; i < kD; ++i) identity[i * kD + i] = 1;
  Recall all, few;
  AddLokiRecall(*f.stream, {f.head, f.options, f.exact, 1}, identity, kD, &all);
  EXPECT_EQ(all.steps, kSteps);
  EXPECT_GT(all.mean(), 0.99);
  AddLokiRecall(*f.stream, {f.head, f.options, f.exact, 1}, identity, 5, &few);
  const double plain = f.Plain(1, [&](int64_t t, int64_t row) {
    const auto dot = [&](int64_t j, int64_t i) {
      double sum = 0;
      for (int64_t c = 0; c < 5; ++c) {
        sum += double{f.queries[static_cast<size_t>((t * kGroup + j) * kD + c)]} *
               double{f.keys[static_cast<size_t>(i * kD + c)]};
      }
      return std::exp(0.3f * sum);
    };
    const StepRange range = RangeOf(f.head, f.options, t);
    double score = 0;
    for (int64_t j = 0; j < kGroup; ++j) {
      double total = 0;
      for (int64_t i = range.begin; i < range.end; ++i) total += dot(j, i);
      score += dot(j, row) / total;
    }
    return score;
  });
  EXPECT_NEAR(few.mean(), plain, 0.02);
  EXPECT_LT(few.mean(), all.mean());
}

}  // namespace
}  // namespace litecache::profile
