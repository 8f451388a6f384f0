#include "ops/dense/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/dense/norm.h"
#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

std::vector<float> Frequencies(int64_t half, double theta) {
  std::vector<float> result;
  for (int64_t i = 0; i < half; ++i) {
    result.push_back(
        static_cast<float>(std::pow(theta, -static_cast<double>(i) / static_cast<double>(half))));
  }
  return result;
}

TEST(Rope, MatchesDoublePrecisionUpToAMillion) {
  Random random(20);
  for (int64_t half : {1, 3, 8, 16, 32, 40, 64, 128}) {
    const auto frequencies = Frequencies(half, 500000.0);
    for (int64_t heads : {1, 3}) {
      std::vector<int32_t> positions = {0, 1, 2, 1000, 131071, 1048575};
      const auto tokens = static_cast<int64_t>(positions.size());
      const Matrix x = Matrix::Normal(random, DType::kF32, tokens, heads * 2 * half, 2);
      for (float scale : {1.0f, 1.25f}) {
        ForEachIsa(2, [&](Stream& stream) {
          const Matrix y = x;
          const Matrix rotations(DType::kF32, tokens, 2 * half);
          RopeRotations(stream, positions, frequencies, scale, rotations.view());
          Rope(stream, y.view(), rotations.view(), heads);
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t h = 0; h < heads; ++h) {
              for (int64_t i = 0; i < half; ++i) {
                const double angle = static_cast<double>(positions[static_cast<size_t>(t)]) *
                                     frequencies[static_cast<size_t>(i)];
                const double a = x.At(t, h * 2 * half + i), b = x.At(t, h * 2 * half + half + i);
                const double bound = std::ldexp(1.0, -24) * 4 * scale * (std::abs(a) + std::abs(b));
                ASSERT_NEAR(y.At(t, h * 2 * half + i),
                            scale * (a * std::cos(angle) - b * std::sin(angle)), bound);
                ASSERT_NEAR(y.At(t, h * 2 * half + half + i),
                            scale * (b * std::cos(angle) + a * std::sin(angle)), bound);
              }
            }
          }
        });
      }
    }
  }
}

TEST(RotateHeads, NormsThenRotatesEachMatrix) {
  Random random(23);
  CpuDevice device(2);
  auto stream = device.CreateStream();
  constexpr int64_t kTokens = 5, kDim = 24;
  const Matrix rotations = Matrix::Normal(random, DType::kF32, kTokens, kDim);
  const Matrix norm = Matrix::Normal(random, DType::kF32, 1, kDim);
  Matrix q = Matrix::Normal(random, DType::kF32, kTokens, 3 * kDim, 2);
  Matrix k = Matrix::Normal(random, DType::kF32, kTokens, kDim);
  const Matrix want_q = q, want_k = k;
  RmsNorm(*stream, want_q.view(), norm.view().Row<float>(0), 1e-5f, 3, want_q.view());
  Rope(*stream, want_q.view(), rotations.view(), 3);
  Rope(*stream, want_k.view(), rotations.view(), 1);
  const ProjectedHeads parts[] = {
      {.x = q.view(), .heads = 3, .norm = norm.view().Row<float>(0)},
      {.x = k.view(), .heads = 1},
  };
  RotateHeads(*stream, parts, 1e-5f, rotations.view());
  EXPECT_TRUE(SameBits(q, want_q));
  EXPECT_TRUE(SameBits(k, want_k));
}

TEST(Rope, ResultsDoNotDependOnTheNumberOfThreads) {
  Random random(21);
  const auto frequencies = Frequencies(32, 10000.0);
  std::vector<int32_t> positions;
  for (int32_t t = 0; t < 300; ++t) positions.push_back(t * 7);
  const Matrix x = Matrix::Normal(random, DType::kF32, 300, 4 * 64);
  std::vector<Matrix> results;
  for (int threads : {1, 2, 4}) {
    CpuDevice device(threads);
    auto stream = device.CreateStream();
    results.push_back(x);
    const Matrix rotations(DType::kF32, 300, 64);
    RopeRotations(*stream, positions, frequencies, 1.0f, rotations.view());
    Rope(*stream, results.back().view(), rotations.view(), 4);
    EXPECT_TRUE(SameBits(results[0], results.back()));
  }
}

}  // namespace
}  // namespace litecache::ops
