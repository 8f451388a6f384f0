#include "eval/run/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "test_seed.h"

namespace litecache::eval {
namespace {

std::vector<float> Logits(std::mt19937_64& random, size_t count, double spread) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(count);
  for (float& x : logits) x = static_cast<float>(normal(random));
  return logits;
}

// The definition, with probabilities in long double.
long double Kl(const std::vector<float>& p, const std::vector<float>& q) {
  const auto log_softmax = [](const std::vector<float>& logits) {
    long double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<long double>(x));
    std::vector<long double> out;
    for (const float x : logits) out.push_back(static_cast<long double>(x) - std::log(sum));
    return out;
  };
  const auto a = log_softmax(p), b = log_softmax(q);
  long double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) kl += std::exp(a[i]) * (a[i] - b[i]);
  return kl;
}

TEST(Divergence, IsTheDefinition) {
  auto random = testing::TestRandom(1);
  for (const size_t count : {1u, 2u, 7u, 333u, 4097u}) {
    for (const double spread : {0.01, 1.0, 8.0}) {
      const auto p = Logits(random, count, spread), q = Logits(random, count, spread);
      const auto found = Compare(p, q);
      const auto expected = static_cast<double>(Kl(p, q));
      // Sums of `count` terms in double, for logits up to about 6 * spread.
      const double tolerance = 1e-15 * static_cast<double>(count) * (1 + 12 * spread) + 1e-13;
      EXPECT_NEAR(found.kl, expected, tolerance) << count << " " << spread;
      EXPECT_EQ(found.same_top, std::max_element(p.begin(), p.end()) - p.begin() ==
                                    std::max_element(q.begin(), q.end()) - q.begin());
    }
  }
}

TEST(Divergence, NothingBetweenEqualsWhateverTheOffset) {
  auto random = testing::TestRandom(2);
  const auto p = Logits(random, 513, 3);
  EXPECT_EQ(Compare(p, p).kl, 0);
  EXPECT_TRUE(Compare(p, p).same_top);
  auto shifted = p;
  for (float& x : shifted) x += 1024;  // does not change the softmax; f32 keeps 13 bits of fraction
  EXPECT_NEAR(Compare(p, shifted).kl, 0, 1e-7);
  // Large logits must not overflow.
  auto large = p;
  for (float& x : large) x = x * 1e4f;
  EXPECT_TRUE(std::isfinite(Compare(large, p).kl));
}

}  // namespace
}  // namespace litecache::eval
