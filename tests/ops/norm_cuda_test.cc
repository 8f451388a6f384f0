#include "ops/dense/norm_cuda.h"

#include "ops/dense/norm.h"
#include "ops/dense_testing_cuda.h"

namespace litecache::ops::cuda {
namespace {

class NormTest : public DenseTest {
 protected:
  // Relative: sums of n squares, a division, a root and products in f32; y's own rounding.
  static double Tolerance(DType y, int64_t n, double want) {
    const double relative = std::ldexp(1.0, -24) * (4 * std::sqrt(static_cast<double>(n)) + 16);
    return (relative + (y == DType::kBF16 ? kBf16Rounding : 0)) * (std::abs(want) + 1e-3);
  }
};

TEST_F(NormTest, RmsNormOfAnyWidth) {
  for (int64_t n : {1, 3, 64, 96, 128, 511, 516, 4096, 4099, 10000}) {
    for (int64_t groups : {1, 5}) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        for (int64_t padding : {0, 3}) {
          SCOPED_TRACE(
              fmt::format("n {}, groups {}, {}, padding {}", n, groups, Name(dtype), padding));
          const Matrix x = Matrix::Normal(random_, DType::kF32, 3, groups * n, padding, 2.0f);
          const std::vector<float> weight = RandomVector(n);
          const Matrix y(dtype, 3, groups * n, padding);
          const MatrixView got = OnDevice(y);
          ops::RmsNorm(*stream_, OnDevice(x), Upload(weight), 1e-5f, groups, got);
          std::vector<double> factors;
          for (int64_t i = 0; i < 3 * groups; ++i) {
            double squares = 0;
            for (int64_t c = 0; c < n; ++c) {
              const double value = x.At(i / groups, i % groups * n + c);
              squares += value * value;
            }
            factors.push_back(1 / std::sqrt(squares / static_cast<double>(n) + 1e-5));
          }
          const auto want = [&](int64_t r, int64_t c) {
            return x.At(r, c) * factors[static_cast<size_t>(r * groups + c / n)] *
                   weight[static_cast<size_t>(c % n)];
          };
          ExpectNear(got, want,
                     [&](int64_t r, int64_t c) { return Tolerance(dtype, n, want(r, c)); });
        }
      }
    }
  }
}

TEST_F(NormTest, TwoWeightsAreTwoNorms) {
  for (int64_t n : {5, 512, 4096, 4099}) {
    for (int64_t rows : {1, 8}) {
      SCOPED_TRACE(fmt::format("n {}, {} rows", n, rows));
      const MatrixView x = OnDevice(Matrix::Normal(random_, DType::kF32, rows, n, 4, 2.0f));
      const float* first = Upload(RandomVector(n));
      const float* second = Upload(RandomVector(n));
      const auto size = static_cast<size_t>(2 * rows * n);
      const auto both = MatrixView::Of(Poisoned<float>(size), 2 * rows, n);
      const auto single = MatrixView::Of(Poisoned<float>(size), 2 * rows, n);
      ops::RmsNormTwice(*stream_, x, first, second, 1e-5f, both);
      ops::RmsNorm(*stream_, x, first, 1e-5f, 1, single.Rows(0, rows));
      ops::RmsNorm(*stream_, x, second, 1e-5f, 1, single.Rows(rows, rows));
      EXPECT_EQ(Download(both.Row<const float>(0), size),
                Download(single.Row<const float>(0), size));
    }
  }
}

TEST_F(NormTest, RmsNormInPlace) {
  const Matrix x = Matrix::Normal(random_, DType::kF32, 130, 3 * 96);
  const std::vector<float> weight = RandomVector(96);
  const MatrixView device = OnDevice(x);
  ops::RmsNorm(*stream_, device, Upload(weight), 1e-6f, 3, device);
  Matrix cpu = x;
  const auto stream = CpuDevice(1).CreateStream();
  ops::RmsNorm(*stream, cpu.view(), weight.data(), 1e-6f, 3, cpu.view());
  ExpectNear(
      device, [&](int64_t r, int64_t c) { return cpu.At(r, c); },
      [&](int64_t r, int64_t c) { return Tolerance(DType::kF32, 96, cpu.At(r, c)); });
}

TEST_F(NormTest, LayerNormOfRowsFarFromZero) {
  for (int64_t n : {1, 5, 128, 768, 2050, 4096, 9001}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("n {}, {}", n, Name(dtype)));
      Matrix x = Matrix::Normal(random_, DType::kF32, 5, n, 4);
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t c = 0; c < n; ++c) x.Set(r, c, static_cast<float>(x.At(r, c)) + 30.0f);
      }
      const std::vector<float> weight = RandomVector(n);
      const std::vector<float> bias = RandomVector(n);
      const Matrix y(dtype, 5, n, 4);
      const MatrixView got = OnDevice(y);
      ops::LayerNorm(*stream_, OnDevice(x), Upload(weight), Upload(bias), 1e-5f, got);
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
      ExpectNear(
          got, [&](int64_t r, int64_t c) { return scaled(r, c) + bias[static_cast<size_t>(c)]; },
          [&](int64_t r, int64_t c) {
            // The rounding of the mean: units of values near 30, divided by the row's norm.
            const auto i = static_cast<size_t>(c);
            const double mean = std::ldexp(40.0, -24) * 8 * factors[static_cast<size_t>(r)];
            return Tolerance(dtype, n, std::abs(scaled(r, c)) + std::abs(bias[i])) +
                   mean * std::abs(weight[i]);
          });
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
