#include "base/dtype.h"

#include <cmath>

namespace litecache {

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kBlocks:
      return "blocks";
  }
  return "?";
}

f16::f16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    bits = sign | 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds to a value above 65504: infinity
    bits = sign | 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal half: units of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 16777216.0f;
    bits = sign | static_cast<uint16_t>(std::nearbyint(scaled));
  } else {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
  }
}

f16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal
    const float magnitude = static_cast<float>(mantissa) * (1.0f / 16777216.0f);
    return sign ? -magnitude : magnitude;
  }
  const uint32_t biased = exponent == 31 ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | (biased << 23) | (mantissa << 13));
}

}  // namespace litecache
