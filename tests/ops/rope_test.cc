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
