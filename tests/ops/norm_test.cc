#include "ops/dense/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

std::vector<float> RandomVector(Random& random, int64_t n) {
  std::vector<float> result(static_cast<size_t>(n));
  for (float& x : result) x = random.Normal();
  return result;
}

TEST(Norm, ResultsDoNotDependOnTheNumberOfThreads) {
  Random random(13);
  const Matrix x = Matrix::Normal(random, DType::kF32, 64, 1000);
  const auto weight = RandomVector(random, 1000), bias = RandomVector(random, 1000);
  std::vector<Matrix> rms, layer;
  for (int threads : {1, 2, 4}) {
    CpuDevice device(threads);
    auto stream = device.CreateStream();
    rms.emplace_back(DType::kF32, 64, 1000);
    layer.emplace_back(DType::kF32, 64, 1000);
    RmsNorm(*stream, x.view(), weight.data(), 1e-5f, 1, rms.back().view());
    LayerNorm(*stream, x.view(), weight.data(), bias.data(), 1e-5f, layer.back().view());
    EXPECT_TRUE(SameBits(rms[0], rms.back()));
    EXPECT_TRUE(SameBits(layer[0], layer.back()));
  }
}

}  // namespace
}  // namespace litecache::ops
