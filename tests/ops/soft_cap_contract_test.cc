// The soft cap of logits in double precision.
#include <limits>

#include "ops/dense/soft_cap.h"
#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

using SoftCapTest = DenseTest;

TEST_F(SoftCapTest, IsTheHyperbolicTangent) {
  for (const auto& [rows, cols, padding] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 0}, {3, 37, 5}, {5, 64, 0}, {2, 70003, 1}}) {
    for (const float cap : {0.5f, 30.0f, 50.0f}) {
      SCOPED_TRACE(fmt::format("[{}, {}], padding {}, cap {}", rows, cols, padding, cap));
      const Matrix x = Matrix::Normal(random_, DType::kF32, rows, cols, padding, 2 * cap);
      ForEachVariant([&] {
        const MatrixView y = OnDevice(x);
        SoftCap(*stream_, cap, y);
        ExpectNear(
            y, [&](int64_t r, int64_t c) { return cap * std::tanh(x.At(r, c) / cap); },
            [&](int64_t, int64_t) { return 1e-6 * cap; });
      });
    }
  }
}

TEST_F(SoftCapTest, HasNoOtherLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, double>> values = {
      {kInfinity, 30}, {-kInfinity, -30}, {3e38f, 30}, {0.0f, 0}};
  Matrix x(DType::kF32, 1, 5, 1);
  for (size_t i = 0; i < values.size(); ++i) x.Set(0, static_cast<int64_t>(i), values[i].first);
  x.Set(0, 4, std::nanf(""));
  ForEachVariant([&] {
    const MatrixView y = OnDevice(x);
    SoftCap(*stream_, 30, y);
    // The last column is NaN still, as the padding behind it.
    ExpectNear(
        y.Columns(0, 4), [&](int64_t, int64_t c) { return values[static_cast<size_t>(c)].second; },
        [](int64_t, int64_t) { return 0.0; });
  });
}

}  // namespace
}  // namespace litecache::ops
