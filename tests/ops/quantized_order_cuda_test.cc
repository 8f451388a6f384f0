// On what the bits of a product with packed blocks on a GPU depend.
#include <cstring>

#include "ops/quantized_linear_testing_cuda.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(CudaQuantizedLinearTest, ARowsBitsDoNotDependOnTheOthers) {
  if (!QuantizedGemvServes()) GTEST_SKIP() << "needs sm_80";
  constexpr int64_t kOut = 203, kMost = kMaxQuantizedGemvRows, kRows = 29;
  EXPECT_EQ(LinearBatchInvariantRows(DeviceType::kCuda, DType::kBlocks), kMost);
  AsCuda(*stream_).MakeBatchInvariant();
  for (const std::string_view format : kPackedFormats) {
    for (const int64_t in : {int64_t{512}, int64_t{14336}}) {
      BlockWeights weights(random_, format, kOut, DepthOf(format, in));
      const MatrixView weight = PackedOnDevice(weights);
      const Matrix x = Matrix::Normal(random_, DType::kBF16, kRows, weights.cols);
      const MatrixView device_x = OnDevice(x);
      const std::vector<float> want = Product(device_x.Rows(0, kMost), weight);
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                        {6, 1},
                                        {7, 1},
                                        {5, 2},
                                        {2, 3},
                                        {4, 4},
                                        {3, 5},
                                        {0, 13},
                                        {4, 19},
                                        {0, kRows}}) {
        SCOPED_TRACE(fmt::format("{}, rows [{}, {}) of {}", format, first, first + rows, in));
        const std::vector<float> got = Product(device_x.Rows(first, rows), weight);
        const auto bytes =
            static_cast<size_t>(std::min(rows, kMost - first) * kOut) * sizeof(float);
        ASSERT_EQ(std::memcmp(got.data(), want.data() + first * kOut, bytes), 0);
        // Nor on the GPU's shared memory.
        const LittleSharedMemory little;
        const std::vector<float> there = Product(device_x.Rows(first, rows), weight);
        ASSERT_EQ(std::memcmp(there.data(), want.data() + first * kOut, bytes), 0);
      }
      buffers_.clear();
    }
  }
}

// With more rows, as long as there are as many.
TEST_F(CudaQuantizedLinearTest, ARowsBitsDependOnTheNumberOfRowsOnly) {
  constexpr int64_t kOut = 203, kIn = 4096;
  for (const std::string_view format : {"Q4_K", "Q6_K", "Q8_0"}) {
    BlockWeights weights(random_, format, kOut, kIn);
    const MatrixView weight = PackedOnDevice(weights);
    for (const int64_t rows : {9, 16, 31, 64, 75}) {
      SCOPED_TRACE(fmt::format("{}, {} rows", format, rows));
      const Matrix x = Matrix::Normal(random_, DType::kBF16, 2 * rows, kIn);
      const MatrixView device_x = OnDevice(x);
      std::vector<float> want;
      for (const int64_t first : {int64_t{0}, int64_t{4}}) {
        // Rows 4 to 8 of x as rows 4 to 8, and as the first ones.
        const std::vector<float> got = Product(device_x.Rows(first, rows), weight);
        const auto begin = got.begin() + (4 - first) * kOut;
        const std::vector<float> same(begin, begin + 4 * kOut);
        if (first == 0) want = same;
        EXPECT_EQ(same, want);
      }
    }
    buffers_.clear();
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
