#include "base/quantize_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/fp8.h"
#include "test_seed.h"

namespace litecache {
namespace {

TEST(Fp8, TheNearestNumberIsChosen) {
  auto random = testing::TestRandom(1);
  std::uniform_real_distribution<float> exponents(-12, 9.5);
  for (int code = 0; code < 256; ++code) {
    if ((code & 127) == 127) continue;
    EXPECT_EQ(ToFp8(FromFp8(static_cast<uint8_t>(code))), code);
  }
  for (int i = 0; i < 20000; ++i) {
    float value = std::exp2(exponents(random));
    if (i % 4 == 0) {  // half-way between two neighbours
      const auto code = static_cast<uint8_t>(i / 4 % 126);
      value = (FromFp8(code) + FromFp8(code + 1)) / 2;
    }
    uint8_t nearest = 0;
    for (uint8_t code = 1; code < 127; ++code) {
      const float old = std::abs(FromFp8(nearest) - value), now = std::abs(FromFp8(code) - value);
      if (now < old || (now == old && code % 2 == 0)) nearest = code;
    }
    EXPECT_EQ(ToFp8(value), nearest) << value;
    EXPECT_EQ(ToFp8(-value), nearest | 0x80) << value;
  }
  EXPECT_EQ(FromFp8(ToFp8(1e30f)), kLargestFp8);
  EXPECT_TRUE(std::isnan(FromFp8(0x7f)));
}

TEST(QuantizeRows, SumsAreOfTheValuesWritten) {
  constexpr int64_t kCols = 192;
  auto random = testing::TestRandom(2);
  std::normal_distribution<float> normal;
  for (const int64_t group : {32, 64, 0}) {
    for (const int bits : {4, 8}) {
      const quantize::RowFormat format{.bits = bits,
                                       .is_float = group == 0 && bits == 8,
                                       .group = group,
                                       .scale_dtype = DType::kF32};
      std::vector<float> row(kCols), scales(static_cast<size_t>(format.groups(kCols)));
      for (float& value : row) value = normal(random);
      std::vector<uint8_t> codes(static_cast<size_t>(format.code_bytes(kCols)));
      const auto error = quantize::RoundRow(format, row, reinterpret_cast<std::byte*>(codes.data()),
                                            reinterpret_cast<std::byte*>(scales.data()));
      double squared_error = 0, squares = 0;
      for (size_t i = 0; i < kCols; ++i) {
        const uint8_t byte = codes[bits == 4 ? i / 2 : i];
        const int code = bits == 8 ? byte : i % 2 == 0 ? byte & 15 : byte >> 4;
        const float value =
            format.is_float ? FromFp8(byte) : static_cast<float>(code - (1 << (bits - 1)));
        const float scale = scales[group == 0 ? 0 : i / static_cast<size_t>(group)];
        squared_error += std::pow(static_cast<double>(value) * scale - row[i], 2);
        squares += static_cast<double>(row[i]) * row[i];
      }
      EXPECT_NEAR(error.squares / squares, 1, 1e-12);
      EXPECT_NEAR(error.squared_error / squared_error, 1, 1e-4);
      EXPECT_LT(squared_error, 0.03 * squares);
    }
  }
}

TEST(QuantizeRows, ValuesWithoutAScale) {
  const quantize::RowFormat formats[] = {
      {.bits = 4, .group = 32, .scale_dtype = DType::kF16},
      {.bits = 8, .is_float = true, .scale_dtype = DType::kF32},
      {.bits = 8, .group = 32, .search = false},
  };
  for (const quantize::RowFormat& format : formats) {
    for (const float value : {0.0f, 1e-44f}) {
      std::array<float, 32> row;
      row.fill(value);
      std::array<std::byte, 32> codes;
      std::array<std::byte, 4> scale = {};
      const auto error = quantize::RoundRow(format, row, codes.data(), scale.data());
      EXPECT_LE(error.squared_error, 32 * 1e-88);
      EXPECT_NE(scale, (std::array<std::byte, 4>{})) << "no reader divides by 0";
    }
    std::array<float, 32> row = {};
    row[7] = std::numeric_limits<float>::infinity();
    std::array<std::byte, 32> codes;
    std::array<std::byte, 4> scale;
    EXPECT_FALSE(
        std::isfinite(quantize::RoundRow(format, row, codes.data(), scale.data()).squares));
    row[7] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(
        std::isfinite(quantize::RoundRow(format, row, codes.data(), scale.data()).squares));
  }
}

}  // namespace
}  // namespace litecache
