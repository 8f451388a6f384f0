#include "engine/logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "test_seed.h"

namespace litecache::engine {
namespace {

std::vector<float> RandomRow(std::mt19937_64& random, size_t size, bool ties) {
  std::normal_distribution<float> normal(0, 5);
  std::vector<float> row(size);
  for (float& value : row) value = ties ? std::round(normal(random)) : normal(random);
  return row;
}

TEST(Logits, MatchPlainLoopsAtOddSizes) {
  auto random = testing::TestRandom();
  std::vector<Candidate> top;
  for (size_t size : {1u, 2u, 15u, 16u, 17u, 100u, 1023u, 1025u, 4096u, 4097u, 12345u, 128256u}) {
    for (const bool ties : {false, true}) {
      const std::vector<float> row = RandomRow(random, size, ties);
      const auto max = std::max_element(row.begin(), row.end());
      EXPECT_EQ(Max(row), *max);
      EXPECT_EQ(ArgMax(row), max - row.begin());  // max_element returns the first of equal values
      EXPECT_TRUE(AllFinite(row));

      double sum = 0;
      for (float value : row) sum += std::exp(double{value} - *max);
      EXPECT_NEAR(LogSumExp(row), *max + std::log(sum), 1e-6);

      std::vector<size_t> order(size);
      for (size_t i = 0; i < size; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return row[a] > row[b]; });
      for (size_t k : {size_t{0}, size_t{1}, size_t{5}, size_t{64}, size / 2, size, size + 3}) {
        SelectTop(row, k, &top);
        ASSERT_EQ(top.size(), std::min(k, size));
        for (size_t i = 0; i < top.size(); ++i) {
          ASSERT_EQ(top[i].token, static_cast<int32_t>(order[i])) << "k " << k << " of " << size;
          ASSERT_EQ(top[i].logit, row[order[i]]);
        }
      }
    }
  }
}

TEST(Logits, SelectTopOfSortedRows) {
  // Rising rows push every value: the worst case of a bar that only rises.
  std::vector<float> rising(5000);
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<float>(i);
  std::vector<Candidate> top;
  SelectTop(rising, 3, &top);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, 4999);
  EXPECT_EQ(top[2].token, 4997);
}

TEST(Logits, NotFiniteIsFoundWhereverItIs) {
  auto random = testing::TestRandom(1);
  for (size_t size : {1u, 16u, 33u, 1000u}) {
    for (float bad : {std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (int i = 0; i < 20; ++i) {
        std::vector<float> row = RandomRow(random, size, false);
        row[random() % size] = bad;
        EXPECT_FALSE(AllFinite(row));
      }
    }
  }
  EXPECT_TRUE(AllFinite(std::vector<float>(33, std::numeric_limits<float>::max())));
}

TEST(Logits, WeightsAreExponentialsToFloatAccuracy) {
  auto random = testing::TestRandom(2);
  std::uniform_real_distribution<float> uniform(-95, 0);
  std::vector<float> row(20000), weights(row.size());
  for (float& value : row) value = uniform(random);
  row[0] = 0;
  std::vector<double> sums;
  const double total = Weights(row, 0, 1, weights, &sums);
  double expected_total = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const double expected = std::exp(double{row[i]});
    if (row[i] > -87) {
      ASSERT_NEAR(weights[i] / expected, 1, 3e-7) << row[i];
    } else {
      ASSERT_LE(weights[i], 2e-38);
    }
    expected_total += expected;
  }
  EXPECT_NEAR(total / expected_total, 1, 1e-6);
  EXPECT_EQ(sums.size(), (row.size() + kWeightBlock - 1) / kWeightBlock);
}

TEST(Logits, LogprobsAreOfTheFullSoftmax) {
  auto random = testing::TestRandom(3);
  const std::vector<float> row = RandomRow(random, 777, false);
  const double log_sum = LogSumExp(row);
  double sum = 0;
  for (int32_t token = 0; token < 777; ++token) {
    sum += std::exp(double{LogprobOf(row, token, log_sum).logprob});
  }
  EXPECT_NEAR(sum, 1, 1e-5);
  const auto top = TopLogprobs(row, 5, log_sum);
  ASSERT_EQ(top.size(), 5u);
  EXPECT_EQ(top[0].token, ArgMax(row));
  for (size_t i = 1; i < top.size(); ++i) EXPECT_GE(top[i - 1].logprob, top[i].logprob);
}

}  // namespace
}  // namespace litecache::engine
