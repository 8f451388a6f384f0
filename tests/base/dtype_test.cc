#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "test_seed.h"

namespace litecache {
namespace {

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isinf(float(bf16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isnan(float(bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(
      float(bf16(std::bit_cast<float>(0x7f800001u)))));  // payload only in the lower half
}

TEST(F16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    f16 half;
    half.bits = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float(f16(value))));
    } else {
      ASSERT_EQ(f16(value).bits, bits) << value;
    }
  }
}

// The conversion must return the nearest half, found here by searching all of them.
TEST(F16, RoundsToNearest) {
  auto random = testing::TestRandom();
  std::uniform_real_distribution<float> exponent(-26, 16.1f);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::exp2(exponent(random)) * ((random() & 1) ? 1.0f : -1.0f);
    const f16 got(value);
    const double error = std::abs(double(float(got)) - double(value));
    for (int step : {-1, 1}) {
      f16 neighbour;
      neighbour.bits = static_cast<uint16_t>(got.bits + step);
      const float other = static_cast<float>(neighbour);
      if (std::isfinite(other) && std::isfinite(float(got))) {
        ASSERT_LE(error, std::abs(double(other) - double(value))) << value;
      }
    }
    if (std::abs(value) >= 65520.0f) {
      ASSERT_TRUE(std::isinf(float(got)));
    }
  }
}

}  // namespace
}  // namespace litecache
