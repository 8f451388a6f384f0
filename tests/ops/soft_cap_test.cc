// The soft cap of logits in double precision.
#include "ops/dense/soft_cap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ops_testing.h"
#include "test_seed.h"

namespace litecache::ops {
namespace {

TEST(SoftCap, IsTheHyperbolicTangent) {
  Random random(testing::TestSeed());
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 37}, {5, 64}, {2, 1003}}) {
    for (const float cap : {0.5f, 30.0f, 50.0f}) {
      Matrix x(DType::kF32, rows, cols, 5);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < cols; ++i) x.Set(r, i, random.Normal(2 * cap));
      }
      ForEachIsa(2, [&](Stream& stream) {
        Matrix y(DType::kF32, rows, cols, 3);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < cols; ++i) y.Set(r, i, static_cast<float>(x.At(r, i)));
        }
        SoftCap(stream, cap, y.view());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < cols; ++i) {
            ASSERT_NEAR(y.At(r, i), cap * std::tanh(x.At(r, i) / cap), 4e-7 * cap) << x.At(r, i);
          }
        }
      });
    }
  }
}

TEST(SoftCap, HasNoOtherLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ForEachIsa(1, [&](Stream& stream) {
    Matrix x(DType::kF32, 1, 5, 1);
    const float values[] = {kInfinity, -kInfinity, 3e38f, 0, std::nanf("")};
    for (int64_t i = 0; i < 5; ++i) x.Set(0, i, values[i]);
    SoftCap(stream, 30, x.view());
    EXPECT_EQ(x.At(0, 0), 30);
    EXPECT_EQ(x.At(0, 1), -30);
    EXPECT_EQ(x.At(0, 2), 30);
    EXPECT_EQ(x.At(0, 3), 0);
    EXPECT_TRUE(std::isnan(x.At(0, 4)));
  });
}

}  // namespace
}  // namespace litecache::ops
