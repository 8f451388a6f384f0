// Element types of weights, activations and KV rows, and scalar conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace litecache {

// kBlocks: quantized values, in blocks of the format that a MatrixView names.
enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kBlocks };

// Bytes of one element; 0 for kBlocks, whose values have no bytes of their own.
constexpr size_t SizeOf(DType dtype) {
  if (dtype == DType::kBlocks) return 0;
  return dtype == DType::kF32 || dtype == DType::kI32 ? 4 : 2;
}

// "f32", "f16", "bf16", "i32", "blocks".
std::string_view Name(DType dtype);

// bfloat16: the upper half of a float. Storage only; arithmetic happens in float.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  // Rounds to nearest even; NaN stays NaN.
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7fffffffu) > 0x7f800000u
               ? static_cast<uint16_t>((u >> 16) | 0x40u)
               : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// IEEE half precision. Storage only.
struct f16 {
  uint16_t bits = 0;

  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

}  // namespace litecache
