#include "ops/sample/arg_max_cuda.h"

#include <algorithm>
#include <limits>

#include "ops/dense_testing.h"

namespace litecache::ops::cuda {
namespace {

using ArgMaxTest = DenseTest;

TEST_F(ArgMaxTest, LowestIdOfTheLargest) {
  for (const auto& [cols, padding] :
       {std::pair<int64_t, int64_t>{1, 0}, {31, 1}, {50257, 0}, {128256, 0}, {32000, 4}}) {
    SCOPED_TRACE(cols);
    constexpr int64_t kRows = 9;
    Matrix logits = Matrix::Normal(random_, DType::kF32, kRows, cols, padding);
    std::vector<int32_t> want(kRows);
    for (int64_t r = 0; r < kRows; ++r) {
      // Every second row has several maxima.
      for (int i = 0; i < 4 && r % 2 == 0; ++i) logits.Set(r, random_.Integer(0, cols - 1), 9.5f);
      const float* row = logits.Row(r);
      want[static_cast<size_t>(r)] = static_cast<int32_t>(std::max_element(row, row + cols) - row);
    }
    auto* ids = Poisoned<int32_t>(kRows);
    auto* finite = Poisoned<int32_t>(kRows);
    ArgMax(*stream_, OnDevice(logits), ids, finite);
    EXPECT_EQ(Download(ids, kRows), want);
    EXPECT_EQ(Download(finite, kRows), std::vector<int32_t>(kRows, 1));
  }
}

TEST_F(ArgMaxTest, SaysWhichRowsAreNotFinite) {
  constexpr int64_t kCols = 5003;
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Matrix logits = Matrix::Normal(random_, DType::kF32, 5, kCols);
  logits.Set(1, random_.Integer(0, kCols - 1), nan);
  logits.Set(2, 17, infinity);
  logits.Set(3, kCols - 1, -infinity);
  for (int64_t c = 0; c < kCols; ++c) logits.Set(4, c, nan);
  auto* ids = Poisoned<int32_t>(5);
  auto* finite = Poisoned<int32_t>(5);
  ArgMax(*stream_, OnDevice(logits), ids, finite);
  EXPECT_EQ(Download(finite, 5), (std::vector<int32_t>{1, 0, 0, 0, 0}));
  const std::vector<int32_t> got = Download(ids, 5);
  EXPECT_EQ(got[2], 17);
  for (int32_t id : got) EXPECT_TRUE(id >= 0 && id < kCols) << id;
}

}  // namespace
}  // namespace litecache::ops::cuda
