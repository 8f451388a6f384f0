#include <limits>

#include "ops/dense/activation.h"
#include "ops/dense/activation_cuda.h"
#include "ops/dense/embedding.h"
#include "ops/dense/embedding_cuda.h"
#include "ops/dense_testing_cuda.h"

namespace litecache::ops::cuda {
namespace {

using ElementwiseTest = DenseTest;

TEST_F(ElementwiseTest, SiluMul) {
  for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32},
                                {DType::kBF16, DType::kBF16},
                                {DType::kF32, DType::kBF16}}) {
    for (const auto& [cols, padding] :
         {std::pair<int64_t, int64_t>{1, 0}, {37, 0}, {132, 4}, {14336, 0}, {70001, 3}}) {
      SCOPED_TRACE(
          fmt::format("{} -> {}, cols {}, padding {}", Name(in), Name(out), cols, padding));
      Matrix gate = Matrix::Normal(random_, in, 3, cols, padding, 4.0f);
      gate.Set(0, 0, -200.0f);  // exp(200) is infinite
      const Matrix up = Matrix::Normal(random_, in, 3, cols, padding);
      const MatrixView device = OnDevice(gate);
      const MatrixView y = in == out ? device : OnDevice(Matrix(out, 3, cols, padding));
      ops::SiluMul(*stream_, device, OnDevice(up), y);
      const auto want = [&](int64_t r, int64_t c) {
        return gate.At(r, c) / (1 + std::exp(-gate.At(r, c))) * up.At(r, c);
      };
      ExpectNear(y, want, [&](int64_t r, int64_t c) {
        return std::abs(want(r, c)) *
                   (std::ldexp(8.0, -24) + (out == DType::kBF16 ? kBf16Rounding : 0)) +
               1e-30;
      });
    }
  }
}

TEST_F(ElementwiseTest, ReluKeepsNaN) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t cols : {5, 64, 16384}) {
      Matrix x = Matrix::Normal(random_, dtype, 3, cols, 4);
      const MatrixView device = OnDevice(x);
      ops::Relu(*stream_, device);
      ExpectNear(
          device, [&](int64_t r, int64_t c) { return std::max(x.At(r, c), 0.0); },
          [](int64_t, int64_t) { return 0.0; });
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float* x = Upload(std::vector<float>{nan, -1.0f});
  ops::Relu(*stream_, MatrixView::Of(x, 1, 2));
  const std::vector<float> got = Download(x, 2);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_EQ(got[1], 0.0f);
}

TEST_F(ElementwiseTest, EmbeddingStoresAndAdds) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t cols : {7, 4096}) {
      for (bool add : {false, true}) {
        const Matrix table = Matrix::Normal(random_, dtype, 211, cols, 4);
        const Matrix y = Matrix::Normal(random_, DType::kF32, 9, cols, 4);
        std::vector<int32_t> ids(9);
        for (int32_t& id : ids) id = static_cast<int32_t>(random_.Integer(0, 210));
        ids[0] = 210;
        ids[1] = 0;
        const MatrixView got = OnDevice(y);
        ops::Embedding(*stream_, OnDevice(table), std::span<const int32_t>(Upload(ids), ids.size()),
                       got, add ? Epilogue::kAdd : Epilogue::kStore);
        const auto want = [&](int64_t r, int64_t c) {
          return table.At(ids[static_cast<size_t>(r)], c) + (add ? y.At(r, c) : 0);
        };
        ExpectNear(got, want, [&](int64_t r, int64_t c) {
          return add ? std::ldexp(1.0, -24) * std::abs(want(r, c)) : 0.0;
        });
      }
    }
  }
}

TEST_F(ElementwiseTest, AnIdTheTableDoesNotHaveGivesNaN) {
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
