#include "base/block_format.h"

#include <algorithm>
#include <cstring>

#include "base/block_layout.h"
#include "base/dtype.h"
#include "base/quantize_blocks.h"

namespace litecache {
namespace {

template <typename T>
struct Plain {
  static constexpr int kValues = 1;
  std::byte bytes[sizeof(T)];

  void ToFloat(float* out) const {
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    *out = static_cast<float>(value);
  }
};

template <typename Block>
void ToFloats(const std::byte* data, int64_t blocks, float* out) {
  static_assert(alignof(Block) == 1);
  const auto* block = reinterpret_cast<const Block*>(data);
  for (int64_t i = 0; i < blocks; ++i) block[i].ToFloat(out + i * Block::kValues);
}

using FromFloat = void (*)(const float* values, int64_t blocks, std::byte* out);

template <typename Block>
constexpr BlockFormat Read(uint32_t type, std::string_view name, FromFloat from_float = nullptr) {
  return {type, name, Block::kValues, sizeof(Block), ToFloats<Block>, from_float};
}

constexpr BlockFormat kFormats[] = {
    Read<Plain<float>>(0, "F32"),
    Read<Plain<f16>>(1, "F16"),
    Read<blocks::Q4_0>(2, "Q4_0", QuantizeQ4_0),
    Read<blocks::Q4_1>(3, "Q4_1", QuantizeQ4_1),
    Read<blocks::Q5_0>(6, "Q5_0", QuantizeQ5_0),
    Read<blocks::Q5_1>(7, "Q5_1", QuantizeQ5_1),
    Read<blocks::Q8_0>(8, "Q8_0", QuantizeQ8_0),
    {9, "Q8_1", 32, 40},
    Read<blocks::Q2_K>(10, "Q2_K"),
    Read<blocks::Q3_K>(11, "Q3_K"),
    Read<blocks::Q4_K>(12, "Q4_K", QuantizeQ4_K),
    Read<blocks::Q5_K>(13, "Q5_K", QuantizeQ5_K),
    Read<blocks::Q6_K>(14, "Q6_K", QuantizeQ6_K),
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    Read<blocks::IQ4_NL>(20, "IQ4_NL"),
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    Read<blocks::IQ4_XS>(23, "IQ4_XS"),
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    Read<Plain<bf16>>(30, "BF16"),
    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},
    Read<blocks::MXFP4>(39, "MXFP4", QuantizeMXFP4),
    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
};

}  // namespace

std::span<const BlockFormat> BlockFormats() { return kFormats; }

const BlockFormat* FindBlockFormat(uint32_t type) {
  const auto* found = std::ranges::find(kFormats, type, &BlockFormat::type);
  return found == std::end(kFormats) ? nullptr : found;
}

const BlockFormat* FindBlockFormat(std::string_view name) {
  const auto* found = std::ranges::find(kFormats, name, &BlockFormat::name);
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace litecache
