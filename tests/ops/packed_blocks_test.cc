#include "ops/linear/quantized/packed_blocks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <tuple>

#include "ops/blocks_testing.h"
#include "ops/linear/quantized/packed_layout.h"

namespace litecache::ops {
namespace {

// The value at a row and column of packed blocks.
float ValueAt(const std::vector<std::byte>& packed, std::string_view format, int64_t cols,
              int64_t row, int64_t col) {
  const PackedLayout& layout = kPackedLayouts[PackedLayoutOf(format)];
  const int64_t chunk = row / kPackedRows * PackedChunks(cols) + col / kChunkColumns;
  const auto in_step = static_cast<int>(col % 32);
  float values[8];
  ReadPackedValues(layout, reinterpret_cast<const uint8_t*>(packed.data()) + chunk * layout.Bytes(),
                   static_cast<int>(row % kPackedRows), static_cast<int>(col % kChunkColumns / 32),
                   in_step % 16 / 4, values);
  return values[in_step / 16 * 4 + in_step % 4];
}

class PackedBlocksTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  bool Small() const { return FormatNamed(GetParam()).values == 32; }
  Random random_{83};
};

TEST_P(PackedBlocksTest, HasTheFormatsValues) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 256}, {7, 768}, {16, 512}, {33, Small() ? 864 : 1024}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} columns", rows, cols));
    BlockWeights weights(random_, GetParam(), rows, cols, /*any_scales=*/true);
    const std::vector<std::byte> packed = weights.Packed();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const float got = ValueAt(packed, GetParam(), cols, row, col), want = weights.At(row, col);
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
            << "[" << row << ", " << col << "]: got " << got << ", want " << want;
      }
    }
    // What lies beyond the matrix.
    for (int64_t row = 0; row < (rows + 15) / 16 * 16; ++row) {
      for (int64_t col = row < rows ? cols : 0; col < PackedChunks(cols) * kChunkColumns; ++col) {
        ASSERT_EQ(std::abs(ValueAt(packed, GetParam(), cols, row, col)), 0) << row << ", " << col;
      }
    }
  }
}

TEST_P(PackedBlocksTest, MayBePackedInPieces) {
  constexpr int64_t kRows = 55, kCols = 512;
  BlockWeights weights(random_, GetParam(), kRows, kCols);
  const std::vector<std::byte> whole = weights.Packed();
  std::vector<std::byte> pieces(whole.size());
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{32, 23}, {0, 16}, {16, 16}}) {
    PackBlocks(weights.view().Rows(first, rows),
               pieces.data() + PackedBytes(*weights.format, first, kCols));
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(PackedBytes(*weights.format, 32, kCols) + PackedBytes(*weights.format, 23, kCols),
            whole.size());
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedBlocksTest, ::testing::ValuesIn(kPackedFormats),
                         [](const auto& format) { return std::string(format.param); });

TEST(PackedBlocks, TakeLittleMoreThanTheFormats) {
  for (const auto& [name, bits] : {std::pair<std::string_view, double>{"Q4_0", 4.5},
                                   {"Q5_0", 5.5},
                                   {"Q8_0", 8.5},
                                   {"MXFP4", 4.5},
                                   {"Q2_K", 3.125},
                                   {"Q3_K", 3.5625},
                                   {"Q4_K", 4.625},
                                   {"Q5_K", 5.625},
                                   {"Q6_K", 6.5625}}) {
    EXPECT_EQ(static_cast<double>(PackedBytes(FormatNamed(name), 4096, 4096)) * 8 / (4096 * 4096),
              bits)
        << name;
  }
  for (const PackedLayout& layout : kPackedLayouts) {
    // Copies are of 16 bytes.
    EXPECT_EQ(layout.HighAt() % 16, 0);
    EXPECT_EQ(layout.RecordsAt() % 16, 0);
    EXPECT_EQ(layout.ScalesAt() % 16, 0);
    EXPECT_EQ(layout.Bytes() % 16, 0);
  }
}

// A tensor core's second operand has the columns of x in the same order as the first has the
// weights': every column of a 16 is in one lane, once.
TEST(PackedBlocks, LanesHaveAllColumns) {
  for (int bits : {1, 2, 4, 8}) {
    std::vector<int> uses(static_cast<size_t>(bits * kPlaneBytes * 8));
    for (int row = 0; row < 16; ++row) {
      for (int step = 0; step < kChunkSteps; ++step) {
        for (int q = 0; q < 4; ++q) {
          for (int half = 0; half < 2; ++half) {
            for (int bit = 0; bit < 4 * bits; ++bit) {
              const int at = PackedWordAt(bits, row, step, q, half) * 8 +
                             PackedBitOf(bits, step, half) + bit / bits * 8 + bit % bits;
              ++uses[static_cast<size_t>(at)];
            }
          }
        }
      }
    }
    for (size_t i = 0; i < uses.size(); ++i) ASSERT_EQ(uses[i], 1) << bits << " bits, bit " << i;
  }
}

}  // namespace
}  // namespace litecache::ops
