#include <gtest/gtest.h>

#include "ops/dense/embedding.h"
#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

TEST(EmbeddingDeathTest, IdsAreChecked) {
  CpuDevice device(1);
  auto stream = device.CreateStream();
  Matrix table(DType::kF32, 4, 8), y(DType::kF32, 1, 8);
  const std::vector<int32_t> ids = {4};
  EXPECT_DEATH(Embedding(*stream, table.view(), ids, y.view()), "id 4 of 4");
}

}  // namespace
}  // namespace litecache::ops
