#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/dense/activation.h"
#include "ops/dense/embedding.h"
#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

TEST(SiluMul, MatchesDoublePrecision) {
  Random random(30);
  for (int64_t n : {1, 7, 16, 33, 4096, 5001, 9000}) {
    Matrix gate = Matrix::Normal(random, DType::kF32, 3, n, 4, 8.0f);
    const Matrix up = Matrix::Normal(random, DType::kF32, 3, n, 1);
    gate.Row(0)[0] = 0.0f;
    gate.Row(1)[0] = 200.0f;
    gate.Row(2)[0] = -200.0f;
    ForEachIsa(3, [&](Stream& stream) {
      const Matrix y = gate;  // in place
      SiluMul(stream, y.view(), up.view(), y.view());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t c = 0; c < n; ++c) {
          const double g = gate.At(t, c);
          const double expected = g / (1 + std::exp(-g)) * up.At(t, c);
          ASSERT_NEAR(y.At(t, c), expected, std::ldexp(1.0, -24) * 12 * std::abs(expected) + 1e-35)
              << "gate " << g;
        }
      }
    });
  }
}

TEST(Relu, ClampsInPlace) {
  Random random(31);
  for (int64_t n : {1, 15, 64, 4099}) {
    const Matrix x = Matrix::Normal(random, DType::kF32, 3, n, 2);
    ForEachIsa(2, [&](Stream& stream) {
      const Matrix y = x;
      Relu(stream, y.view());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t c = 0; c < n; ++c) ASSERT_EQ(y.At(t, c), std::max(x.At(t, c), 0.0));
      }
    });
  }
}

TEST(Embedding, CopiesAndAddsExactly) {
  Random random(32);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t n : {1, 17, 64, 1001}) {
      const Matrix table = Matrix::Normal(random, dtype, 50, n, 3);
      std::vector<int32_t> ids;
      for (int i = 0; i < 40; ++i) ids.push_back(static_cast<int32_t>(random.Integer(0, 49)));
      const Matrix before = Matrix::Normal(random, DType::kF32, 40, n);
      ForEachIsa(2, [&](Stream& stream) {
        const Matrix stored = before, added = before;
        Embedding(stream, table.view(), ids, stored.view());
        Embedding(stream, table.view(), ids, added.view(), Epilogue::kAdd);
        for (int64_t t = 0; t < 40; ++t) {
          for (int64_t c = 0; c < n; ++c) {
            const double value = table.At(ids[static_cast<size_t>(t)], c);
            ASSERT_EQ(stored.At(t, c), value);
            ASSERT_EQ(added.At(t, c),
                      static_cast<float>(before.At(t, c)) + static_cast<float>(value));
          }
        }
      });
    }
  }
}

TEST(EmbeddingDeathTest, IdsAreChecked) {
  CpuDevice device(1);
  auto stream = device.CreateStream();
  Matrix table(DType::kF32, 4, 8), y(DType::kF32, 1, 8);
  const std::vector<int32_t> ids = {4};
  EXPECT_DEATH(Embedding(*stream, table.view(), ids, y.view()), "id 4 of 4");
}

}  // namespace
}  // namespace litecache::ops
