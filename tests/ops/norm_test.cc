#include "ops/dense/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

std::vector<float> RandomVector(Random& random, int64_t n) {
  std::vector<float> result(static_cast<size_t>(n));
  for (float& x : result) x = random.Normal();
  return result;
}

// Relative to the largest normalized value: sums of n squares lose at most sqrt(n) units in
// practice, the division and products a few more.
double Tolerance(int64_t n) { return std::ldexp(1.0, -24) * (4 * std::sqrt(n) + 16); }

TEST(RmsNorm, MatchesDoublePrecision) {
  Random random(10);
  for (int64_t n : {1, 3, 16, 31, 64, 96, 257, 2048, 4099}) {
    for (int64_t groups : {1, 3}) {
      const Matrix x = Matrix::Normal(random, DType::kF32, 5, groups * n, 3, 2.0f);
      const auto weight = RandomVector(random, n);
      for (int threads : {1, 3}) {
        ForEachIsa(threads, [&](Stream& stream) {
          Matrix y(DType::kF32, 5, groups * n, 1);
          RmsNorm(stream, x.view(), weight.data(), 1e-5f, groups, y.view());
          for (int64_t t = 0; t < 5; ++t) {
            for (int64_t first = 0; first < groups * n; first += n) {
              double squares = 0;
              for (int64_t i = 0; i < n; ++i) squares += x.At(t, first + i) * x.At(t, first + i);
              const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5f);
              for (int64_t i = 0; i < n; ++i) {
                const double expected =
                    x.At(t, first + i) * factor * weight[static_cast<size_t>(i)];
                ASSERT_NEAR(y.At(t, first + i), expected,
                            Tolerance(n) * (std::abs(expected) + 1e-6));
              }
            }
          }
        });
      }
    }
  }
}

TEST(RmsNorm, InPlaceIsTheSame) {
  Random random(11);
  Matrix x = Matrix::Normal(random, DType::kF32, 7, 130);
  const auto weight = RandomVector(random, 65);
  ForEachIsa(2, [&](Stream& stream) {
    Matrix y(DType::kF32, 7, 130);
    Matrix in_place = x;
    RmsNorm(stream, x.view(), weight.data(), 1e-6f, 2, y.view());
    RmsNorm(stream, in_place.view(), weight.data(), 1e-6f, 2, in_place.view());
    EXPECT_TRUE(SameBits(y, in_place));
  });
}

TEST(LayerNorm, MatchesDoublePrecision) {
  Random random(12);
  for (int64_t n : {2, 3, 16, 31, 64, 257, 2048, 4099}) {
    Matrix x = Matrix::Normal(random, DType::kF32, 5, n, 3);
    // A mean far from zero: a one-pass variance would fail here.
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < n; ++c) x.Row(t)[c] += 100.0f;
    }
    const auto weight = RandomVector(random, n), bias = RandomVector(random, n);
    ForEachIsa(3, [&](Stream& stream) {
      Matrix y(DType::kF32, 5, n);
      LayerNorm(stream, x.view(), weight.data(), bias.data(), 1e-5f, y.view());
      for (int64_t t = 0; t < 5; ++t) {
        double mean = 0, squares = 0;
        for (int64_t c = 0; c < n; ++c) mean += x.At(t, c) / static_cast<double>(n);
        for (int64_t c = 0; c < n; ++c) squares += std::pow(x.At(t, c) - mean, 2);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5f);
        for (int64_t c = 0; c < n; ++c) {
          const auto i = static_cast<size_t>(c);
          const double expected = (x.At(t, c) - mean) * factor * weight[i] + bias[i];
          // The mean is rounded at 100: 2^-24 * 100 on each centred value.
          const double bound =
              std::ldexp(1.0, -24) * 8 * std::sqrt(n) * 100 * factor * std::abs(weight[i]) +
              Tolerance(n) * (std::abs(expected) + std::abs(bias[i]));
          ASSERT_NEAR(y.At(t, c), expected, bound) << n << " columns, column " << c;
        }
      }
    });
  }
}

TEST(Norm, ResultsDoNotDependOnTheNumberOfThreads) {
  Random random(13);
  const Matrix x = Matrix::Normal(random, DType::kF32, 64, 1000);
  const auto weight = RandomVector(random, 1000), bias = RandomVector(random, 1000);
  std::vector<Matrix> rms, layer;
  for (int threads : {1, 2, 4}) {
    CpuDevice device(threads);
    auto stream = device.CreateStream();
    rms.emplace_back(DType::kF32, 64, 1000);
    layer.emplace_back(DType::kF32, 64, 1000);
    RmsNorm(*stream, x.view(), weight.data(), 1e-5f, 1, rms.back().view());
    LayerNorm(*stream, x.view(), weight.data(), bias.data(), 1e-5f, layer.back().view());
    EXPECT_TRUE(SameBits(rms[0], rms.back()));
    EXPECT_TRUE(SameBits(layer[0], layer.back()));
  }
}

}  // namespace
}  // namespace litecache::ops
