#include "profile/loki_basis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "small_model.h"
#include "test_seed.h"

namespace litecache::profile {
namespace {

TEST(LokiBasisTest, IsOrthonormalOrderedAndMadeOfEigenvectors) {
  std::mt19937_64 random = testing::TestRandom();
  for (const int64_t d : {1, 5, 24, 64}) {
    const auto size = static_cast<size_t>(d);
    const int64_t count = 3 * d + 1300;
    // Correlated keys with a non-zero mean.
    const auto mix = testing::Normal(random, size * size);
    const auto mean = testing::Normal(random, size, 5);
    std::vector<float> keys;
    for (int64_t i = 0; i < count; ++i) {
      const auto x = testing::Normal(random, size);
      for (size_t a = 0; a < size; ++a) {
        double sum = double{mean[a]};
        for (size_t b = 0; b < size; ++b) sum += double{x[b]} * double{mix[b * size + a]};
        keys.push_back(static_cast<float>(sum));
      }
    }
    KeyCovariance sums(d);
    sums.Add(keys.data(), 700);
    sums.Add(keys.data() + 700 * d, count - 700);
    EXPECT_EQ(sums.count(), count);
    const auto covariance = sums.Covariance();

    std::vector<double> average(size), plain(size * size);
    for (int64_t i = 0; i < count; ++i) {
      for (size_t a = 0; a < size; ++a) {
        average[a] += double{keys[static_cast<size_t>(i) * size + a]} / static_cast<double>(count);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* key = keys.data() + i * d;
      for (size_t a = 0; a < size; ++a) {
        for (size_t b = 0; b < size; ++b) {
          plain[a * size + b] += (double{key[a]} - average[a]) * (double{key[b]} - average[b]) /
                                 static_cast<double>(count);
        }
      }
    }
    double norm = 0;
    for (const double value : plain) norm = std::max(norm, std::abs(value));
    // A mean of products minus a product of means, each rounded once per key relative to its own
    // size.
    double most = norm;
    for (const double value : average) most = std::max(most, value * value);
    const double rounding =
        std::numeric_limits<double>::epsilon() * static_cast<double>(count) * most;
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(covariance[i], plain[i], rounding);

    // The moment about zero is larger by the square of the mean.
    const auto moment = sums.SecondMoment();
    for (size_t i = 0; i < plain.size(); ++i) {
      const double square = average[i / size] * average[i % size];
      EXPECT_NEAR(moment[i], plain[i] + square, 1e-9 * (norm + std::abs(square)) + 1e-9);
    }

    const auto basis = PrincipalComponents(covariance, d);
    double previous = std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < size; ++c) {
      for (size_t e = 0; e < size; ++e) {
        double dot = 0;
        for (size_t a = 0; a < size; ++a) {
          dot += double{basis[a * size + c]} * double{basis[a * size + e]};
        }
        EXPECT_NEAR(dot, c == e ? 1 : 0, 1e-5);
      }
      double variance = 0;
      std::vector<double> image(size);
      for (size_t a = 0; a < size; ++a) {
        for (size_t b = 0; b < size; ++b) {
          image[a] += plain[a * size + b] * double{basis[b * size + c]};
        }
        variance += image[a] * double{basis[a * size + c]};
      }
      EXPECT_LE(variance, previous + 1e-6 * norm * static_cast<double>(d));
      previous = variance;
      for (size_t a = 0; a < size; ++a) {
        EXPECT_NEAR(image[a], variance * double{basis[a * size + c]},
                    1e-5 * norm * static_cast<double>(d));
      }
    }
  }
}

}  // namespace
}  // namespace litecache::profile
