#include "ops/dense/scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

TEST(Scale, MultipliesAndAddsMultiples) {
  Random random(31);
  CpuDevice device(2);
  auto stream = device.CreateStream();
  for (const int64_t cols : {1, 7, 64, 5001}) {
    const Matrix x = Matrix::Normal(random, DType::kF32, 3, cols, 5);
    const Matrix y = Matrix::Normal(random, DType::kF32, 3, cols, 2);
    const Matrix scaled = x, sum = y;
    Scale(*stream, 0.22f, scaled.view());
    AddScaled(*stream, 0.22f, x.view(), sum.view());
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const double product = static_cast<double>(0.22f) * x.At(r, c);
        EXPECT_NEAR(scaled.At(r, c), product, std::ldexp(std::abs(product), -23));
        EXPECT_NEAR(sum.At(r, c), product + y.At(r, c),
                    std::ldexp(std::abs(product) + std::abs(y.At(r, c)), -23));
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops
