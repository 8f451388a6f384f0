#include "ops/dense/convert_cuda.h"

#include <bit>
#include <random>

#include "ops/gpu_testing_cuda.h"
#include "test_seed.h"

namespace litecache::ops::cuda {
namespace {

using ConvertTest = GpuTest;

TEST_F(ConvertTest, RoundsToNearestEvenAndBack) {
  std::mt19937_64 random = testing::TestRandom();
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 3, kCols = 1037;
  std::vector<float> x(kRows * kCols);
  for (float& value : x) value = normal(random);
  float* source = Upload(x);
  auto* half = Poisoned<uint16_t>(x.size());
  auto* back = Poisoned<float>(x.size());
  Convert(*stream_, MatrixView::Of(source, kRows, kCols),
          MatrixView::Of(half, DType::kBF16, kRows, kCols));
  Convert(*stream_, MatrixView::Of(half, DType::kBF16, kRows, kCols),
          MatrixView::Of(back, kRows, kCols));
  const std::vector<float> got = Download(back, x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
    ASSERT_EQ(got[i], std::bit_cast<float>(rounded)) << i;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
