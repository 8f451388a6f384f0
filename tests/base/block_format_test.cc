#include "base/block_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "test_seed.h"

namespace litecache {
namespace {

// Those with f16 scales. Of MXFP4, whose scales are powers of two and whose steps grow with the
// values, less can be said, and only its own tests say it.
std::vector<const BlockFormat*> Writable() {
  std::vector<const BlockFormat*> formats;
  for (const BlockFormat& format : BlockFormats()) {
    if (format.from_float != nullptr && format.name != "MXFP4") formats.push_back(&format);
  }
  return formats;
}

std::vector<float> Normal(size_t count, float scale = 1) {
  auto engine = testing::TestRandom(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

std::vector<std::byte> Write(const BlockFormat& format, const std::vector<float>& values) {
  const auto blocks = static_cast<int64_t>(values.size()) / format.values;
  std::vector<std::byte> bytes(static_cast<size_t>(blocks * format.bytes));
  format.from_float(values.data(), blocks, bytes.data());
  return bytes;
}

std::vector<float> Read(const BlockFormat& format, const std::vector<std::byte>& bytes) {
  const auto blocks = static_cast<int64_t>(bytes.size()) / format.bytes;
  std::vector<float> values(static_cast<size_t>(blocks * format.values));
  format.to_float(bytes.data(), blocks, values.data());
  return values;
}

std::vector<float> RoundTrip(const BlockFormat& format, const std::vector<float>& values) {
  return Read(format, Write(format, values));
}

// Root mean square of the error, relative to that of the values.
double Error(const std::vector<float>& want, const std::vector<float>& got) {
  double error = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    square += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / square);
}

TEST(BlockFormat, WritesTheUsualFormatsOfWeights) {
  std::vector<std::string> names;
  for (const BlockFormat* format : Writable()) names.emplace_back(format->name);
  EXPECT_EQ(names, (std::vector<std::string>{"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K",
                                             "Q6_K"}));
}

// Of normal values. The largest of 32 has on average magnitude 2.38, so that Q8_0's steps of
// 2.38 / 127 have a root mean square error of 1 / sqrt(12) steps, 0.54%; the extremes are 4.14
// apart, which is 7.97% with 15 steps and 3.85% with 31 (Q4_1, Q5_1), and 2.38 / 8 and 2.38 / 16
// are 8.6% and 4.3% (Q4_0, Q5_0). That is what the Python package's quantizers have. Searches must
// be better, in spite of scales with 6 bits; 16 values with 2.07 / 32 have 1.87% (Q6_K).
TEST(BlockFormat, ErrorsOfNormalValues) {
  const struct {
    const char* name;
    double most;
  } kBounds[] = {{"Q8_0", 0.0056}, {"Q4_0", 0.083},  {"Q4_1", 0.080},  {"Q5_0", 0.0415},
                 {"Q5_1", 0.0386}, {"Q4_K", 0.0735}, {"Q5_K", 0.0365}, {"Q6_K", 0.018}};
  for (const auto& [name, most] : kBounds) {
    for (const float scale : {1.0f, 0.02f}) {
      const std::vector<float> values = Normal(256 * 400, scale);
      const double error = Error(values, RoundTrip(*FindBlockFormat(name), values));
      EXPECT_LT(error, most) << name << ", scale " << scale;
      EXPECT_GT(error, most / 2) << name;
      if (scale == 1) RecordProperty(name, std::to_string(error));
    }
  }
}

// No value of a block is off by more than a step.
TEST(BlockFormat, ErrorsOfSingleValues) {
  const std::vector<float> values = Normal(256 * 200);
  for (const BlockFormat* format : Writable()) {
    const std::vector<float> read = RoundTrip(*format, values);
    const std::string name(format->name);
    const size_t group = name == "Q6_K" ? 16 : 32;
    const double levels = name == "Q8_0" ? 254 : name == "Q6_K" ? 63 : name[1] == '4' ? 15 : 31;
    for (size_t i = 0; i < values.size(); i += group) {
      float largest = 0;
      for (size_t j = i; j < i + group; ++j) largest = std::max(largest, std::abs(values[j]));
      for (size_t j = i; j < i + group; ++j) {
        // Searches give up some of the largest value for the others.
        const double steps = name == "Q8_0" ? 0.51 : 1.6;
        EXPECT_LE(std::abs(read[j] - values[j]), steps * 2 * largest / levels) << name;
      }
    }
  }
}

// Blocks of random bits, but for f16 scales: reading and writing them changes nothing.
TEST(BlockFormat, ValuesOfABlockAreReturnedExactly) {
  auto engine = testing::TestRandom(2);
  std::uniform_int_distribution<int> byte(0, 255);
  for (const char* name : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}) {
    const BlockFormat& format = *FindBlockFormat(name);
    for (const int levels : {255, 0x33, 1}) {  // all of them, and few
      std::vector<std::byte> bytes(static_cast<size_t>(format.bytes) * 300);
      for (std::byte& b : bytes) b = static_cast<std::byte>(byte(engine) & levels);
      for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(format.bytes)) {
        const f16 scale(0.01f + 0.001f * static_cast<float>(byte(engine)));
        std::memcpy(&bytes[at], &scale, sizeof(scale));
        if (name[3] == '1') {
          const f16 minimum(0.01f * static_cast<float>(byte(engine) - 200));
          std::memcpy(&bytes[at + 2], &minimum, sizeof(minimum));
          // The first value is the minimum.
          const bool five = name[1] == '5';
          if (five) bytes[at + 4] &= std::byte{0xfe};
          bytes[at + (five ? 8 : 4)] &= std::byte{0xf0};
        }
        // -128 is no level that is written.
        for (size_t i = at + 2; std::string(name) == "Q8_0" && i < at + 34; ++i) {
          if (bytes[i] == std::byte{0x80}) bytes[i] = std::byte{0x81};
        }
      }
      const std::vector<float> values = Read(format, bytes);
      const std::vector<float> again = RoundTrip(format, values);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(again[i], values[i]) << name << ", levels " << levels << ", value " << i;
      }
    }
  }
}

TEST(BlockFormat, ConstantAndTinyValues) {
  for (const BlockFormat* format : Writable()) {
    for (const float value : {0.0f, 1.0f, -1.0f, 0.37f, -0.37f, 0.01f, 60000.0f}) {
      const std::vector<float> read = RoundTrip(*format, std::vector<float>(512, value));
      for (const float r : read) {
        ASSERT_NEAR(r, value, 0.01f * std::abs(value)) << format->name;
      }
    }
    // Less than f16's smallest number: nothing but zeros, or what a step of the scale can hold.
    for (const float r : RoundTrip(*format, Normal(512, 1e-12f))) ASSERT_EQ(r, 0) << format->name;
    for (const float r : RoundTrip(*format, Normal(512, 1e-38f))) ASSERT_EQ(r, 0) << format->name;
  }
}

TEST(BlockFormat, ValuesThatAreNotFiniteMakeABlockNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const BlockFormat* format : Writable()) {
    const auto block = static_cast<size_t>(format->values);
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
      std::vector<float> values = Normal(3 * block);
      values[block + 5] = value;
      const std::vector<float> read = RoundTrip(*format, values);
      for (size_t i = 0; i < read.size(); ++i) {
        ASSERT_EQ(std::isnan(read[i]), i / block == 1) << format->name << " " << i;
      }
    }
    // Too large for a scale in f16: not finite, whatever the values are.
    std::vector<float> huge = Normal(block, 1e37f);
    huge[3] = std::numeric_limits<float>::max();
    huge[4] = std::numeric_limits<float>::lowest();
    const std::vector<float> read = RoundTrip(*format, huge);
    EXPECT_TRUE(std::none_of(read.begin(), read.end(), [](float r) { return std::isfinite(r); }))
        << format->name;
  }
}

// The Python package's quantizer, which always takes the lower of the two scales, has 11.5%.
TEST(BlockFormat, Mxfp4OfNormalValues) {
  const BlockFormat& format = *FindBlockFormat("MXFP4");
  for (const float scale : {1.0f, 0.02f, 1e-30f, 1e30f}) {
    const std::vector<float> values = Normal(256 * 400, scale);
    const std::vector<float> read = RoundTrip(format, values);
    const double error = Error(values, read);
    EXPECT_LT(error, 0.114) << "scale " << scale;
    EXPECT_GT(error, 0.08) << "scale " << scale;
    for (size_t i = 0; i < values.size(); i += 32) {
      float largest = 0;
      for (size_t j = i; j < i + 32; ++j) largest = std::max(largest, std::abs(values[j]));
      // At most a quarter of the largest, which is 8 times the scale and becomes 6.
      for (size_t j = i; j < i + 32; ++j) EXPECT_LE(std::abs(read[j] - values[j]), largest / 4);
    }
  }
}

TEST(BlockFormat, Mxfp4ValuesAreReturnedExactly) {
  const BlockFormat& format = *FindBlockFormat("MXFP4");
  auto engine = testing::TestRandom(3);
  std::uniform_int_distribution<int> byte(0, 255);
  for (const int codes : {0xff, 0x33, 0x11, 0}) {  // all of them, and few
    std::vector<std::byte> bytes(static_cast<size_t>(format.bytes) * 300);
    for (std::byte& b : bytes) b = static_cast<std::byte>(byte(engine) & codes);
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(format.bytes)) {
      bytes[at] = static_cast<std::byte>(2 + byte(engine) % 250);
    }
    const std::vector<float> values = Read(format, bytes);
    EXPECT_EQ(RoundTrip(format, values), values);
  }
}

TEST(BlockFormat, Mxfp4HasInfiniteValuesInsteadOfNan) {
  const BlockFormat& format = *FindBlockFormat("MXFP4");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    std::vector<float> values = Normal(96);
    values[40] = value;
    const std::vector<float> read = RoundTrip(format, values);
    for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(std::isfinite(read[i]), i / 32 != 1) << i;
  }
}

}  // namespace
}  // namespace litecache
