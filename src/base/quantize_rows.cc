#include "base/quantize_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/fp8.h"
#include "base/quantize_scales.h"

namespace litecache::quantize {
namespace {

// `scale` as a directory holds it; written to `out` unless that is null.
float StoreScale(float scale, DType dtype, std::byte* out) {
  const auto store = [out](auto stored) {
    if (out != nullptr) std::memcpy(out, &stored, sizeof(stored));
    return static_cast<float>(stored);
  };
  if (dtype == DType::kF32) return store(scale);
  return dtype == DType::kF16 ? store(f16(scale)) : store(bf16(scale));
}

float LargestOf(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

// Steps, in quarters of a code, by which the largest magnitude may lie beyond the largest code.
// With 4 bits and groups of 128 the best is 7.5 to 10 codes for it, for normal values as for
// Student's t with 5 degrees of freedom; 13 leaves room for single outliers.
constexpr int kScaleSteps = 24;

// A scale of integers in [-high - 1, high]. 0: they are all 0, or too small for the dtype.
float IntegerScale(const RowFormat& format, std::span<const float> x, float largest, float high) {
  const float plain = StoreScale(largest / (high + 0.5f), format.scale_dtype, nullptr);
  if (!format.search) return plain;
  float best_scale = plain, best = SquaredError(x, plain, -high - 1, high);
  for (int step = 0; step <= kScaleSteps; ++step) {
    const float scale = StoreScale(largest / (high + 0.25f * static_cast<float>(step)),
                                   format.scale_dtype, nullptr);
    const float error = SquaredError(x, scale, -high - 1, high);
    if (error < best) {
      best = error;
      best_scale = scale;
    }
  }
  return best_scale;
}

}  // namespace

RowError RoundRow(const RowFormat& format, std::span<const float> row, std::byte* codes,
                  std::byte* scales) {
  const size_t group = format.group == 0 ? row.size() : static_cast<size_t>(format.group);
  const auto high = static_cast<float>((1 << (format.bits - 1)) - 1);
  RowError sums;
  for (const float value : row) sums.squares += static_cast<double>(value) * value;
  if (!std::isfinite(sums.squares)) return sums;
  for (size_t begin = 0; begin < row.size(); begin += group) {
    const std::span<const float> x = row.subspan(begin, group);
    const float largest = LargestOf(x);
    // FP8 numbers have the same relative steps at every scale: there is nothing to search.
    const float wanted =
        format.is_float ? largest / kLargestFp8 : IntegerScale(format, x, largest, high);
    float scale = StoreScale(wanted, format.scale_dtype, scales);
    // Values of 0, or next to it, have codes of 0 and any scale: a reader may divide by it.
    float inverse = 0;
    if (scale >= std::numeric_limits<float>::min()) {
      inverse = 1 / scale;
    } else {
      scale = StoreScale(1, format.scale_dtype, scales);
    }
    scales += SizeOf(format.scale_dtype);
    uint8_t low_half = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      float value;
      uint8_t code;
      if (format.is_float) {
        code = ToFp8(x[i] * inverse);
        value = FromFp8(code);
      } else {
        value = Level(x[i] * inverse, -high - 1, high);
        code = static_cast<uint8_t>(value + high + 1);
      }
      if (format.bits == 8) {
        *codes++ = std::byte{code};
      } else if (i % 2 == 0) {
        low_half = code;
      } else {
        *codes++ = static_cast<std::byte>(low_half | code << 4);
      }
      const double error = static_cast<double>(x[i]) - static_cast<double>(value * scale);
      sums.squared_error += error * error;
    }
  }
  return sums;
}

}  // namespace litecache::quantize
