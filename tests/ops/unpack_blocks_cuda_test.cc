// Values of packed blocks on a GPU.
#include "ops/linear/quantized/unpack_blocks_cuda.h"

#include <bit>
#include <cmath>
#include <vector>

#include "ops/blocks_testing_cuda.h"
#include "ops/dense/embedding_cuda.h"

namespace litecache::ops::cuda {
namespace {

using CudaUnpackBlocksTest = CudaBlocksTest;

TEST_F(CudaUnpackBlocksTest, UnpacksRoundedValues) {
  for (const std::string_view format : kPackedFormats) {
    SCOPED_TRACE(format);
    constexpr int64_t kOut = 71, kFirst = 16;
    BlockWeights weights(random_, format, kOut, DepthOf(format, 512));
    const auto size = static_cast<size_t>((kOut - kFirst) * weights.cols);
    const MatrixView y =
        MatrixView::Of(Poisoned<uint16_t>(size), DType::kBF16, kOut - kFirst, weights.cols);
    UnpackBlocks(AsCuda(*stream_), PackedOnDevice(weights), kFirst, y);
    const std::vector<uint16_t> got = Download(y.Row<uint16_t>(0), size);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_EQ(got[i], bf16(weights.values[static_cast<size_t>(kFirst * weights.cols) + i]).bits)
          << i;
    }
  }
}

TEST_F(CudaUnpackBlocksTest, EmbedsTheFormatsValues) {
  const std::vector<int32_t> ids = {0, 70, 16, -1, 33, 71, 15};
  const auto count = static_cast<int64_t>(ids.size());
  for (const std::string_view format : kPackedFormats) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
      SCOPED_TRACE(format);
      BlockWeights weights(random_, format, 71, DepthOf(format, 512), /*any_scales=*/true);
      const int64_t cols = weights.cols, stride = cols + 3;
      const std::vector<float> before = RandomVector(count * stride);
      float* const y = Upload(before);
      MatrixView view = MatrixView::Of(y, count, cols);
      view.stride = stride;
      cuda::Embedding(*stream_, PackedOnDevice(weights), Upload(ids), view, epilogue);
      const std::vector<float> got = Download(y, before.size());
      for (int64_t t = 0; t < count; ++t) {
        const int32_t id = ids[static_cast<size_t>(t)];
        for (int64_t i = 0; i < stride; ++i) {
          const auto at = static_cast<size_t>(t * stride + i);
          if (i < cols && (id < 0 || id >= 71)) {
            ASSERT_TRUE(std::isnan(got[at])) << t << ", " << i;
            continue;
          }
          float want = before[at];
          if (i < cols) {
            want = weights.At(id, i) + (epilogue == Epilogue::kAdd ? before[at] : 0);
            if (epilogue == Epilogue::kStore) want = weights.At(id, i);
          }
          ASSERT_EQ(std::bit_cast<uint32_t>(got[at]), std::bit_cast<uint32_t>(want))
              << t << ", " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
