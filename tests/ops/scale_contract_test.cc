#include <limits>

#include "ops/dense/scale.h"
#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

using ScaleTest = DenseTest;

TEST_F(ScaleTest, MultipliesAndAddsMultiples) {
  constexpr float kFactor = 0.22f;
  for (const int64_t cols : {1, 7, 64, 5001, 8192, 70004}) {
    for (const int64_t padding : {0, 3, 4}) {
      SCOPED_TRACE(fmt::format("cols {}, padding {}", cols, padding));
      const Matrix x = Matrix::Normal(random_, DType::kF32, 3, cols, padding, 5);
      const Matrix y = Matrix::Normal(random_, DType::kF32, 3, cols, padding, 2);
      const auto product = [&](int64_t r, int64_t c) {
        return static_cast<double>(kFactor) * x.At(r, c);
      };
      ForEachVariant([&] {
        const MatrixView scaled = OnDevice(x), by = OnDevice(x), sum = OnDevice(y);
        Scale(*stream_, kFactor, scaled);
        ScaleBy(*stream_, Upload(std::vector<float>{kFactor}), by);
        AddScaled(*stream_, kFactor, OnDevice(x), sum);
        for (const MatrixView& result : {scaled, by}) {
          ExpectNear(result, product, [&](int64_t r, int64_t c) {
            return std::ldexp(std::abs(product(r, c)), -23);
          });
        }
        ExpectNear(
            sum, [&](int64_t r, int64_t c) { return product(r, c) + y.At(r, c); },
            [&](int64_t r, int64_t c) {
              return std::ldexp(std::abs(product(r, c)) + std::abs(y.At(r, c)), -23);
            });
      });
    }
  }
}

TEST_F(ScaleTest, ZeroTimesAnythingIsZero) {
  Matrix x = Matrix::Normal(random_, DType::kF32, 2, 4099);
  x.Set(0, 5, std::numeric_limits<float>::quiet_NaN());
  x.Set(1, 4098, std::numeric_limits<float>::infinity());
  ForEachVariant([&] {
    const MatrixView scaled = OnDevice(x);
    Scale(*stream_, 0, scaled);
    ExpectNear(
        scaled, [](int64_t, int64_t) { return 0.0; }, [](int64_t, int64_t) { return 0.0; });
  });
}

}  // namespace
}  // namespace litecache::ops
