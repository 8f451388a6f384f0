#include "ops/dense/norm.h"
#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

class NormTest : public DenseTest {
 protected:
  // Relative: sums of n squares, which lose at most sqrt(n) units in practice, a division, a root
  // and products in f32; y's own rounding.
  static double Tolerance(DType y, int64_t n, double want) {
    const double relative = std::ldexp(1.0, -24) * (4 * std::sqrt(static_cast<double>(n)) + 16);
    return (relative + Rounding(y)) * (std::abs(want) + 1e-6);
  }
};

TEST_F(NormTest, RmsNormOfAnyWidth) {
  for (int64_t n : {1, 3, 16, 31, 64, 96, 128, 257, 511, 516, 2048, 4096, 4099, 10000}) {
    for (int64_t groups : {1, 3, 5}) {
      for (DType dtype : target_->Activations()) {
        for (int64_t padding : {0, 3}) {
          SCOPED_TRACE(
              fmt::format("n {}, groups {}, {}, padding {}", n, groups, Name(dtype), padding));
          const Matrix x = Matrix::Normal(random_, DType::kF32, 3, groups * n, padding, 2.0f);
          const std::vector<float> weight = RandomVector(n);
          std::vector<double> factors;
          for (int64_t i = 0; i < 3 * groups; ++i) {
            double squares = 0;
            for (int64_t c = 0; c < n; ++c) {
              const double value = x.At(i / groups, i % groups * n + c);
              squares += value * value;
            }
            factors.push_back(1 / std::sqrt(squares / static_cast<double>(n) + 1e-5f));
          }
          const auto want = [&](int64_t r, int64_t c) {
            return x.At(r, c) * factors[static_cast<size_t>(r * groups + c / n)] *
                   weight[static_cast<size_t>(c % n)];
          };
          ForEachVariant([&] {
            const MatrixView got = OnDevice(Matrix(dtype, 3, groups * n, padding));
            RmsNorm(*stream_, OnDevice(x), Upload(weight), 1e-5f, groups, got);
            ExpectNear(got, want,
                       [&](int64_t r, int64_t c) { return Tolerance(dtype, n, want(r, c)); });
          });
        }
      }
    }
  }
}

TEST_F(NormTest, TwoWeightsAreTwoNorms) {
  for (int64_t n : {5, 512, 4096, 4099}) {
    for (int64_t rows : {1, 8}) {
      SCOPED_TRACE(fmt::format("n {}, {} rows", n, rows));
      const Matrix x = Matrix::Normal(random_, DType::kF32, rows, n, 4, 2.0f);
      const std::vector<float> first = RandomVector(n), second = RandomVector(n);
      const auto size = static_cast<size_t>(2 * rows * n);
      ForEachVariant([&] {
        const MatrixView device = OnDevice(x);
        const float* weights[] = {Upload(first), Upload(second)};
        const auto both = MatrixView::Of(Poisoned<float>(size), 2 * rows, n);
        const auto single = MatrixView::Of(Poisoned<float>(size), 2 * rows, n);
        RmsNormTwice(*stream_, device, weights[0], weights[1], 1e-5f, both);
        RmsNorm(*stream_, device, weights[0], 1e-5f, 1, single.Rows(0, rows));
        RmsNorm(*stream_, device, weights[1], 1e-5f, 1, single.Rows(rows, rows));
        EXPECT_EQ(Download(both.Row<const float>(0), size),
                  Download(single.Row<const float>(0), size));
      });
    }
  }
}

TEST_F(NormTest, RmsNormInPlaceIsTheSame) {
  for (const auto& [rows, n, groups] :
       {std::tuple<int64_t, int64_t, int64_t>{130, 96, 3}, {7, 65, 2}}) {
    const Matrix x = Matrix::Normal(random_, DType::kF32, rows, groups * n);
    const std::vector<float> weight = RandomVector(n);
    const auto size = static_cast<size_t>(rows * groups * n);
    ForEachVariant([&] {
      const MatrixView in_place = OnDevice(x);
      const auto y = MatrixView::Of(Poisoned<float>(size), rows, groups * n);
      const float* weights = Upload(weight);
      RmsNorm(*stream_, in_place, weights, 1e-6f, groups, y);
      RmsNorm(*stream_, in_place, weights, 1e-6f, groups, in_place);
      EXPECT_EQ(Download(in_place.Row<const float>(0), size),
                Download(y.Row<const float>(0), size));
    });
  }
}

// Without a bias, too.
TEST_F(NormTest, LayerNormOfRowsFarFromZero) {
  for (int64_t n : {1, 2, 3, 5, 16, 31, 64, 128, 257, 768, 2048, 2050, 4096, 4099, 9001}) {
    for (DType dtype : target_->Activations()) {
      SCOPED_TRACE(fmt::format("n {}, {}", n, Name(dtype)));
      // A mean far from zero: a one-pass variance would fail here.
      Matrix x = Matrix::Normal(random_, DType::kF32, 5, n, 4);
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t c = 0; c < n; ++c) x.Set(r, c, static_cast<float>(x.At(r, c)) + 30.0f);
      }
      const bool biased = n % 3 != 0;
      const std::vector<float> weight = RandomVector(n);
      const std::vector<float> bias = biased ? RandomVector(n) : std::vector<float>(weight.size());
      std::vector<double> means, factors;
      for (int64_t r = 0; r < 5; ++r) {
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < n; ++c) sum += x.At(r, c);
        means.push_back(sum / static_cast<double>(n));
        for (int64_t c = 0; c < n; ++c) {
          squares += (x.At(r, c) - means.back()) * (x.At(r, c) - means.back());
        }
        factors.push_back(1 / std::sqrt(squares / static_cast<double>(n) + 1e-5));
      }
      const auto scaled = [&](int64_t r, int64_t c) {
        return (x.At(r, c) - means[static_cast<size_t>(r)]) * factors[static_cast<size_t>(r)] *
               weight[static_cast<size_t>(c)];
      };
      ForEachVariant([&] {
        const MatrixView got = OnDevice(Matrix(dtype, 5, n, 4));
        LayerNorm(*stream_, OnDevice(x), Upload(weight), biased ? Upload(bias) : nullptr, 1e-5f,
                  got);
        ExpectNear(
            got, [&](int64_t r, int64_t c) { return scaled(r, c) + bias[static_cast<size_t>(c)]; },
            [&](int64_t r, int64_t c) {
              // The rounding of the mean: units of values near 30, divided by the row's norm.
              const auto i = static_cast<size_t>(c);
              const double mean = std::ldexp(40.0, -24) * 8 * std::sqrt(static_cast<double>(n)) *
                                  factors[static_cast<size_t>(r)];
              return Tolerance(dtype, n, std::abs(scaled(r, c)) + std::abs(bias[i])) +
                     mean * std::abs(weight[i]);
            });
      });
    }
  }
}

}  // namespace
}  // namespace litecache::ops
