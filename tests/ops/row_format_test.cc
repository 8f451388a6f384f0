#include "ops/common/row_format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/paged_testing.h"

namespace litecache::ops {
namespace {

constexpr RowEncoding kEncodings[] = {RowEncoding::kBF16, RowEncoding::kF32, RowEncoding::kFp8,
                                      RowEncoding::kInt8};

constexpr RowEncoding kAll[] = {RowEncoding::kBF16, RowEncoding::kF32, RowEncoding::kFp8,
                                RowEncoding::kInt8, RowEncoding::kInt4};

double LargestCode(RowEncoding encoding) { return encoding == RowEncoding::kFp8 ? 448 : 127; }

// The distance between neighbouring codes around x (in units of codes).
double CodeStep(RowEncoding encoding, double x) {
  if (encoding == RowEncoding::kInt8) return 1;
  const int exponent = x == 0 ? -6 : std::max(-6, std::ilogb(std::abs(x)));
  return std::ldexp(1.0, exponent - 3);
}

std::vector<std::byte> Convert(const RowFormat& from, const std::byte* row, RowEncoding to) {
  const RowFormat target{to, from.head_dim};
  // A guard after the row, which must not be written.
  std::vector<std::byte> out(target.row_bytes() + 64, std::byte{0xa5});
  ConvertRow(from, row, target, out.data());
  for (size_t i = target.row_bytes(); i < out.size(); ++i) EXPECT_EQ(out[i], std::byte{0xa5});
  return out;
}

TEST(RowFormat, SizesAndNames) {
  EXPECT_EQ((RowFormat{RowEncoding::kBF16, 64}.row_bytes()), 256u);
  EXPECT_EQ((RowFormat{RowEncoding::kF32, 64}.row_bytes()), 512u);
  EXPECT_EQ((RowFormat{RowEncoding::kFp8, 64}.row_bytes()), 144u);
  EXPECT_EQ((RowFormat{RowEncoding::kInt8, 128}.row_bytes()), 272u);
  EXPECT_EQ((RowFormat{RowEncoding::kInt8, 128, true}.row_bytes()), 256u);
  // 36 bytes for 64 values (FlexGen).
  EXPECT_EQ((RowFormat{RowEncoding::kInt4, 64}.row_bytes()), 72u);
  EXPECT_EQ((RowFormat{RowEncoding::kInt4, 128}.row_bytes()), 144u);
  EXPECT_EQ((RowFormat{RowEncoding::kInt4, 65}.row_bytes()), 2u * (33 + 8));
  EXPECT_EQ(Name(RowEncoding::kInt4), "int4");
  EXPECT_EQ(Name(RowEncoding::kBF16), "bf16");
  EXPECT_EQ(Name(RowEncoding::kF32), "f32");
  EXPECT_EQ(Name(RowEncoding::kFp8), "fp8");
  EXPECT_EQ(Name(RowEncoding::kInt8), "int8");
}

TEST(RowFormat, ScalesApart) {
  for (const RowEncoding encoding : {RowEncoding::kFp8, RowEncoding::kInt8}) {
    for (const int64_t head_dim : {7, 64, 128}) {
      const RowFormat format{encoding, head_dim}, apart{encoding, head_dim, true};
      const RowFormat f32{RowEncoding::kF32, head_dim};
      ASSERT_EQ(apart.row_bytes(), static_cast<size_t>(2 * head_dim));
      std::vector<float> values(static_cast<size_t>(2 * head_dim));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = (i < values.size() / 2 ? 1.0f : 30.0f) * std::sin(static_cast<float>(i));
      }
      std::vector<std::byte> row(format.row_bytes());
      ConvertRow(f32, reinterpret_cast<const std::byte*>(values.data()), format, row.data());
      std::vector<std::byte> codes(apart.row_bytes());
      const RowScales scales = SplitScales(format, row.data(), codes.data());
      EXPECT_LT(scales.k, scales.v);
      std::vector<std::byte> joined(row.size(), std::byte{0xff});
      JoinScales(format, codes.data(), scales, joined.data());
      EXPECT_EQ(joined, row);
    }
  }
}

// Every code of both quantized formats, at every position of a vector, with the value defined by
// the format.
TEST(RowFormat, EveryCodeDecodesExactly) {
  for (RowEncoding encoding : {RowEncoding::kFp8, RowEncoding::kInt8}) {
    const RowFormat format{encoding, 131};
    ForEachIsa(1, [&](Stream&) {
      for (int code = 0; code < 256; ++code) {
        if (encoding == RowEncoding::kFp8 && (code & 0x7f) == 0x7f) continue;  // NaN: never written
        std::vector<std::byte> row(format.row_bytes(), static_cast<std::byte>(code));
        const float scales[2] = {0.25f, 1.5f};
        std::memcpy(row.data() + 2 * 131, scales, sizeof(scales));
        const auto out = Convert(format, row.data(), RowEncoding::kF32);
        for (int64_t i = 0; i < 262; ++i) {
          ASSERT_EQ(RowValue({RowEncoding::kF32, 131}, out.data(), i),
                    RowValue(format, row.data(), i))
              << Name(encoding) << " code " << code << ", element " << i;
        }
      }
    });
  }
}

// All pairs of formats: values are as precise as the target's steps allow.
TEST(RowFormat, ConversionsAreAsGoodAsTheTarget) {
  Random random(60);
  for (int64_t head_dim : {1, 7, 16, 33, 64, 80, 128, 131, 256}) {
    for (float size : {1e-30f, 1e-3f, 1.0f, 1000.0f, 1e30f}) {
      const RowFormat plain{RowEncoding::kF32, head_dim};
      std::vector<std::byte> source(plain.row_bytes());
      FillRow(random, plain, source.data(), size);
      // Parts of different magnitudes: each has a separate scale. Wide ranges reach subnormal
      // codes.
      for (int64_t i = 0; i < head_dim; ++i) {
        const auto x = static_cast<float>(RowValue(plain, source.data(), i));
        SetRowValue(plain, source.data(), i, x * std::exp2(static_cast<float>(-(i % 13))));
      }
      ForEachIsa(1, [&](Stream&) {
        for (RowEncoding from : kEncodings) {
          const RowFormat from_format{from, head_dim};
          const auto row = Convert(plain, source.data(), from);
          for (RowEncoding to : kEncodings) {
            const RowFormat to_format{to, head_dim};
            const auto out = Convert(from_format, row.data(), to);
            if (to == from) {
              ASSERT_EQ(std::memcmp(out.data(), row.data(), from_format.row_bytes()), 0);
              continue;
            }
            for (int64_t part = 0; part < 2; ++part) {
              double largest = 0;
              for (int64_t i = 0; i < head_dim; ++i) {
                largest = std::max(
                    largest, std::abs(RowValue(from_format, row.data(), part * head_dim + i)));
              }
              for (int64_t i = part * head_dim; i < (part + 1) * head_dim; ++i) {
                const double x = RowValue(from_format, row.data(), i);
                // From the product of from's code and scale.
                double bound = std::abs(x) * std::ldexp(1.0, -24);
                if (to == RowEncoding::kBF16) bound += std::abs(x) * std::ldexp(1.0, -8);
                if (to_format.quantized()) {
                  const double scale = largest / LargestCode(to);
                  if (scale > 0) bound += CodeStep(to, x / scale) * scale * 0.5 * (1 + 1e-6);
                  // The scale and the quotient are rounded too.
                  bound += std::abs(x) * std::ldexp(1.0, -22);
                }
                ASSERT_NEAR(RowValue(to_format, out.data(), i), x, bound)
                    << Name(from) << " to " << Name(to) << ", head_dim " << head_dim << ", element "
                    << i << ", size " << size;
              }
            }
          }
        }
      });
    }
  }
}

// Halves between two codes go to the even one; with a scale of 1, quotients are exact.
TEST(RowFormat, TiesGoToEven) {
  const RowFormat plain{RowEncoding::kF32, 300};
  for (RowEncoding to : {RowEncoding::kFp8, RowEncoding::kInt8}) {
    std::vector<std::byte> row(plain.row_bytes());
    std::vector<int> expected;
    for (int64_t i = 0; i < 600; ++i) {
      const int64_t code = i % 300 % (to == RowEncoding::kFp8 ? 126 : 127);
      const auto value = [&](int64_t c) {
        return to == RowEncoding::kFp8 ? Fp8Value(static_cast<uint8_t>(c)) : static_cast<double>(c);
      };
      const double sign = i % 2 == 0 ? 1 : -1;
      SetRowValue(plain, row.data(), i,
                  static_cast<float>(sign * (value(code) + value(code + 1)) / 2));
      expected.push_back(static_cast<int>(code % 2 == 0 ? code : code + 1));
    }
    for (int64_t part : {0, 1}) {
      SetRowValue(plain, row.data(), part * 300 + 299, static_cast<float>(LargestCode(to)));
    }
    ForEachIsa(1, [&](Stream&) {
      const auto out = Convert(plain, row.data(), to);
      for (int64_t i = 0; i < 600; ++i) {
        if (i % 300 == 299) continue;
        const auto byte = static_cast<uint8_t>(out[static_cast<size_t>(i)]);
        const int code =
            to == RowEncoding::kFp8 ? byte & 0x7f : std::abs(static_cast<int8_t>(byte));
        ASSERT_EQ(code, expected[static_cast<size_t>(i)]) << Name(to) << ", element " << i;
      }
    });
  }
}

TEST(RowFormat, ExtremeParts) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (RowEncoding to : {RowEncoding::kFp8, RowEncoding::kInt8}) {
    for (int64_t head_dim : {5, 64}) {
      const RowFormat plain{RowEncoding::kF32, head_dim}, format{to, head_dim};
      const auto run = [&](float k0, float k1, float v) {
        std::vector<std::byte> row(plain.row_bytes());
        for (int64_t i = 0; i < head_dim; ++i) {
          SetRowValue(plain, row.data(), i, i == 0 ? k0 : k1);
          SetRowValue(plain, row.data(), head_dim + i, v);
        }
        return Convert(plain, row.data(), to);
      };
      ForEachIsa(1, [&](Stream&) {
        // A part of zeros has scale 0 and codes that decode to 0.
        auto out = run(0.0f, -0.0f, 2.0f);
        for (int64_t i = 0; i < head_dim; ++i) {
          EXPECT_EQ(RowValue(format, out.data(), i), 0);
          EXPECT_NEAR(RowValue(format, out.data(), head_dim + i), 2.0, 1e-6);
        }
        // Infinities saturate; finite values next to them stay finite.
        out = run(infinity, -infinity, largest);
        EXPECT_NEAR(RowValue(format, out.data(), 0) / largest, 1, 1e-6);
        EXPECT_NEAR(RowValue(format, out.data(), 1) / largest, -1, 1e-6);
        EXPECT_NEAR(RowValue(format, out.data(), head_dim) / largest, 1, 1e-6);
        // A NaN affects its whole part, and only that part.
        out = run(std::nanf(""), 1.0f, 3.0f);
        for (int64_t i = 0; i < head_dim; ++i) {
          EXPECT_TRUE(std::isnan(RowValue(format, out.data(), i)));
          EXPECT_NEAR(RowValue(format, out.data(), head_dim + i), 3.0, 1e-6);
        }
        // The smallest floats: only their own granularity is lost.
        out = run(3e-44f, -1e-44f, 1e-38f);
        EXPECT_NEAR(RowValue(format, out.data(), 0), 3e-44, 3e-44);
        EXPECT_NEAR(RowValue(format, out.data(), head_dim), 1e-38, 1e-38 / 100);
      });
    }
  }
}

// Within half a step of FlexGen's groups; from every format.
TEST(RowFormat, Int4IsAsGoodAsItsGroups) {
  Random random(62);
  for (int64_t head_dim : {1, 2, 7, 16, 33, 63, 64, 65, 80, 128, 131, 200}) {
    for (float size : {1e-3f, 1.0f, 1000.0f}) {
      for (float shift : {0.0f, 5.0f}) {
        const RowFormat plain{RowEncoding::kF32, head_dim}, format{RowEncoding::kInt4, head_dim};
        std::vector<std::byte> source(plain.row_bytes());
        FillRow(random, plain, source.data(), size);
        for (int64_t i = 0; i < 2 * head_dim; ++i) {
          const auto x = static_cast<float>(RowValue(plain, source.data(), i));
          SetRowValue(plain, source.data(), i, x + shift * size);
        }
        ForEachIsa(1, [&](Stream&) {
          for (RowEncoding from : kEncodings) {
            const RowFormat from_format{from, head_dim};
            const auto row = Convert(plain, source.data(), from);
            const auto out = Convert(from_format, row.data(), RowEncoding::kInt4);
            const auto back = Convert(format, out.data(), RowEncoding::kF32);
            for (int64_t part = 0; part < 2; ++part) {
              for (int64_t group = 0; group < head_dim; group += 64) {
                const int64_t begin = part * head_dim + group;
                const int64_t end = part * head_dim + std::min(group + 64, head_dim);
                double low = HUGE_VAL, high = -HUGE_VAL;
                for (int64_t i = begin; i < end; ++i) {
                  low = std::min(low, RowValue(from_format, row.data(), i));
                  high = std::max(high, RowValue(from_format, row.data(), i));
                }
                // Half a step, the f16 rounding of minimum and step (11 bits, or its smallest
                // number, 2^-24), and f32's own rounding.
                const double bound =
                    (high - low) / 30 * (1 + 1e-3) +
                    (std::abs(low) + (high - low)) * (std::ldexp(1.0, -11) + 1e-6) +
                    16 * std::ldexp(1.0, -24);
                for (int64_t i = begin; i < end; ++i) {
                  ASSERT_NEAR(RowValue(format, out.data(), i), RowValue(from_format, row.data(), i),
                              bound)
                      << Name(from) << ", head_dim " << head_dim << ", element " << i << ", size "
                      << size << ", shift " << shift;
                  ASSERT_NEAR(RowValue(plain, back.data(), i), RowValue(format, out.data(), i),
                              std::abs(low) * 1e-6 + (high - low) * 1e-6);
                }
              }
            }
          }
        });
      }
    }
  }
}

TEST(RowFormat, Int4ExtremeGroups) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int64_t head_dim : {5, 64, 130}) {
    const RowFormat plain{RowEncoding::kF32, head_dim}, format{RowEncoding::kInt4, head_dim};
    const auto run = [&](float first, float others, float v) {
      std::vector<std::byte> row(plain.row_bytes());
      for (int64_t i = 0; i < head_dim; ++i) {
        SetRowValue(plain, row.data(), i, i == 0 ? first : others);
        SetRowValue(plain, row.data(), head_dim + i, v);
      }
      return Convert(plain, row.data(), RowEncoding::kInt4);
    };
    ForEachIsa(1, [&](Stream&) {
      auto out = run(0, 0, 2.5f);  // groups of one value
      for (int64_t i = 0; i < head_dim; ++i) {
        EXPECT_EQ(RowValue(format, out.data(), i), 0);
        EXPECT_EQ(RowValue(format, out.data(), head_dim + i), 2.5);
      }
      out = run(infinity, -infinity, 1e30f);
      EXPECT_NEAR(RowValue(format, out.data(), 0), 65504, 64);
      EXPECT_EQ(RowValue(format, out.data(), 1), -65504);
      EXPECT_EQ(RowValue(format, out.data(), head_dim), 65504);
      out = run(std::nanf(""), 1, 3);  // affects its whole group, and only that
      for (int64_t i = 0; i < head_dim; ++i) {
        EXPECT_EQ(std::isnan(RowValue(format, out.data(), i)), i < 64) << i;
        EXPECT_EQ(RowValue(format, out.data(), head_dim + i), 3);
      }
    });
  }
}

TEST(ConvertRows, RangesOverPages) {
  Random random(61);
  bool alone = false;  // alternately by one thread
  for (RowEncoding from : kAll) {
    for (RowEncoding to : kAll) {
      const RowFormat source_format{from, 24}, target_format{to, 24}, plain{RowEncoding::kF32, 24};
      PagedBlock source(random, source_format, 1000, 16), other(random, source_format, 40, 5);
      std::vector<std::byte> row(plain.row_bytes());
      for (int64_t t = 0; t < 1000; ++t) {
        FillRow(random, plain, row.data());
        ConvertRow(plain, row.data(), source_format, source.rows().Row(t));
        if (t < 40) ConvertRow(plain, row.data(), source_format, other.rows().Row(t));
      }
      ForEachIsa(3, [&](Stream& stream) {
        PagedBlock a(random, target_format, 1000, 7), b(random, target_format, 40, 64);
        const ConvertWork work[] = {{source.rows(), a.rows(), 3, 950},
                                    {source.rows(), a.rows(), 990, 0},
                                    {other.rows(), b.rows(), 39, 1}};
        if (alone) {
          for (const ConvertWork& w : work) CopyRows(w);
        } else {
          ConvertRows(stream, work);
        }
        alone = !alone;
        const auto check = [&](const PagedBlock& in, const PagedBlock& out, int64_t tokens,
                               int64_t begin, int64_t end) {
          std::vector<std::byte> expected(target_format.row_bytes());
          for (int64_t t = 0; t < tokens; ++t) {
            std::fill(expected.begin(), expected.end(), std::byte{0xff});
            if (t >= begin && t < end) {
              ConvertRow(source_format, in.rows().Row(t), target_format, expected.data());
            }
            ASSERT_EQ(std::memcmp(out.rows().Row(t), expected.data(), expected.size()), 0)
                << Name(from) << " to " << Name(to) << ", row " << t;
          }
        };
        check(source, a, 1000, 3, 953);
        check(other, b, 40, 39, 40);
      });
    }
  }
}

}  // namespace
}  // namespace litecache::ops
