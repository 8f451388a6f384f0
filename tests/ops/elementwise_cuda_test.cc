#include <limits>

#include "ops/dense/activation.h"
#include "ops/dense/embedding_cuda.h"
#include "ops/dense_testing.h"

namespace litecache::ops::cuda {
namespace {

using ElementwiseCudaTest = DenseTest;

TEST_F(ElementwiseCudaTest, ReluKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float* x = Upload(std::vector<float>{nan, -1.0f});
  ops::Relu(*stream_, MatrixView::Of(x, 1, 2));
  const std::vector<float> got = Download(x, 2);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_EQ(got[1], 0.0f);
}

TEST_F(ElementwiseCudaTest, AnIdTheTableDoesNotHaveGivesNaN) {
  const Matrix table = Matrix::Normal(random_, DType::kBF16, 5, 8);
  auto* y = Poisoned<float>(24);
  cuda::Embedding(*stream_, OnDevice(table), Upload(std::vector<int32_t>{5, -1, 4}),
                  MatrixView::Of(y, 3, 8), Epilogue::kStore);
  const std::vector<float> got = Download(y, 24);
  for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(got[i])) << i;
  for (size_t i = 16; i < 24; ++i) EXPECT_EQ(got[i], table.At(4, static_cast<int64_t>(i) - 16));
}

}  // namespace
}  // namespace litecache::ops::cuda
