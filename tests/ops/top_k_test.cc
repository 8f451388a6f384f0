#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/select/top_k_cpu.h"
#include "ops_testing.h"

namespace litecache::ops {
namespace {

// By a stable sort, which TopK avoids.
std::vector<int32_t> Reference(const std::vector<float>& scores, int64_t k, int64_t first) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t i) {
    const float x = scores[static_cast<size_t>(i)];
    return std::isnan(x) ? -std::numeric_limits<double>::max() * 2 : static_cast<double>(x);
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const bool a_nan = std::isnan(scores[static_cast<size_t>(a)]);
    const bool b_nan = std::isnan(scores[static_cast<size_t>(b)]);
    if (a_nan != b_nan) return b_nan;
    return value(a) > value(b);
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  for (int32_t& x : order) x += static_cast<int32_t>(first);
  return order;
}

void ExpectTopK(const std::vector<float>& scores, int64_t k, int64_t first) {
  const auto n = static_cast<int64_t>(scores.size());
  SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(n));
  std::vector<int32_t> positions(static_cast<size_t>(k) + 1, -7);
  cpu::TopK(scores.data(), n, k, first, positions.data());
  EXPECT_EQ(positions.back(), -7) << "written past the end";
  positions.pop_back();
  ASSERT_EQ(positions, Reference(scores, k, first));

  std::vector<float> positive;
  for (float x : scores) positive.push_back(std::isnan(x) ? 0 : std::abs(x));
  const std::vector<int32_t> want = Reference(positive, k, first);
  positive.resize(positive.size() + cpu::kTopKPadding, std::numeric_limits<float>::infinity());
  cpu::TopKOfPositive(positive.data(), n, k, first, positions.data());
  ASSERT_EQ(positions, want);
}

TEST(TopK, EqualsAStableSort) {
  Random random(71);
  ForEachIsa(1, [&](Stream&) {
    for (int64_t n : {1, 2, 3, 15, 16, 17, 31, 33, 100, 257, 1000, 4096, 20000}) {
      for (int shape = 0; shape < 6; ++shape) {
        SCOPED_TRACE("shape " + std::to_string(shape));
        std::vector<float> scores(static_cast<size_t>(n));
        for (size_t i = 0; i < scores.size(); ++i) {
          const float x = random.Normal();
          const auto small = static_cast<float>(random.Integer(-3, 3));
          switch (shape) {
            case 0:
              scores[i] = x;
              break;
            case 1:
              scores[i] = std::exp(20 * x);
              break;  // probabilities: many tiny, a few large
            case 2:
              scores[i] = small * 0.0f + static_cast<float>(random.Integer(-2, 2));
              break;
            case 3:
              scores[i] = static_cast<float>(i) * (n % 2 == 0 ? 1.0f : -1.0f);
              break;
            case 4:
              scores[i] = 0.25f;
              break;
            default:
              scores[i] = i % 97 == 0 ? x : std::nextafter(1.0f, 2.0f);
              break;
          }
        }
        for (int64_t k : {int64_t{1}, int64_t{2}, n / 10, n / 2, n - 1, n}) {
          if (k >= 1 && k <= n) ExpectTopK(scores, k, random.Integer(0, 1000));
        }
      }
    }
  });
}

TEST(TopK, ASampleThatMissesCostsTimeAlone) {
  Random random(73);
  ForEachIsa(1, [&](Stream&) {
    for (int64_t n : {cpu::kTopKMinSampled, int64_t{5000}, int64_t{40000}}) {
      for (const float offset : {-10.0f, 10.0f}) {
        std::vector<float> scores(static_cast<size_t>(n));
        for (float& x : scores) x = random.Normal();
        for (int64_t i = 0; i < cpu::kTopKSamples; ++i) {
          scores[static_cast<size_t>(cpu::TopKSamplePosition(i, n))] += offset;
        }
        for (int64_t k : {int64_t{1}, n / 100, n / 10, n / 2, n - n / 10, n - 1}) {
          ExpectTopK(scores, k, 0);
        }
      }
    }
  });
}

TEST(TopK, TakesInfinitiesNansAndZerosOfEitherSign) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Random random(72);
  const std::vector<float> values = {kInf,   -kInf,   kNan,  -kNan,  0.0f, -0.0f,
                                     1e-42f, -1e-42f, 3e38f, -3e38f, 1,    -1};
  ForEachIsa(1, [&](Stream&) {
    for (int64_t n : {5, 40, 3000}) {
      std::vector<float> scores(static_cast<size_t>(n));
      for (float& x : scores) {
        x = values[static_cast<size_t>(random.Integer(0, static_cast<int64_t>(values.size()) - 1))];
      }
      for (int64_t k : {int64_t{1}, n / 3, n / 2, n - 1, n}) ExpectTopK(scores, k, 0);
    }
    ExpectTopK(std::vector<float>(300, kNan), 120, 5);
  });
}

}  // namespace
}  // namespace litecache::ops
