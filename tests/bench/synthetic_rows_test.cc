#include "bench/synthetic_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "test_seed.h"

namespace litecache::bench {
namespace {

TEST(SyntheticRows, AreNormalAndNotTheSameTwice) {
  CpuDevice device(1);
  constexpr int64_t kRows = 37, kWidth = 136, kChunks = 20;
  SyntheticRows values(device, DType::kF32, kRows, kWidth, testing::TestSeed());
  double sum = 0, squares = 0;
  std::set<std::vector<float>> rows;
  for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
    const MatrixView view = values.Next(kRows, kWidth);
    ASSERT_EQ(view.rows, kRows);
    ASSERT_EQ(view.stride, kWidth);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 16, 0u);
    for (int64_t r = 0; r < kRows; ++r) {
      rows.emplace(view.Row<float>(r), view.Row<float>(r) + kWidth);
      for (int64_t i = 0; i < kWidth; ++i) {
        sum += double{view.Row<float>(r)[i]};
        squares += std::pow(double{view.Row<float>(r)[i]}, 2);
      }
    }
  }
  const double count = static_cast<double>(kChunks * kRows * kWidth);
  // More than six standard errors, because views may share values.
  EXPECT_NEAR(sum / count, 0, 12 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1, 12 * std::sqrt(2 / count));
  // Two chunks of 20 share rows if their distance is a multiple of the width.
  EXPECT_GT(static_cast<int64_t>(rows.size()), kChunks * kRows / 2);
}

TEST(SyntheticRows, NarrowerAndInBf16) {
  CpuDevice device(1);
  SyntheticRows values(device, DType::kBF16, 5, 64, testing::TestSeed());
  const MatrixView view = values.Next(3, 17);
  EXPECT_EQ(view.dtype, DType::kBF16);
  EXPECT_EQ(view.cols, 17);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 16, 0u);
  double squares = 0;
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 17; ++i) {
      squares += std::pow(static_cast<double>(static_cast<float>(view.Row<bf16>(r)[i])), 2);
    }
  }
  EXPECT_GT(squares, 3 * 17 * 0.1);
  EXPECT_LT(squares, 3 * 17 * 10);
}

}  // namespace
}  // namespace litecache::bench
