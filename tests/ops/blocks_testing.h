// Random quantized weights for the tests of packed blocks.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "base/block_layout.h"
#include "base/matrix_view.h"
#include "ops/linear/quantized/packed_blocks.h"
#include "ops/ops_testing.h"

namespace litecache::ops {

// The formats that are packed.
inline constexpr std::string_view kPackedFormats[] = {"Q4_0",   "Q4_1",   "Q5_0", "Q5_1", "Q8_0",
                                                      "Q2_K",   "Q3_K",   "Q4_K", "Q5_K", "Q6_K",
                                                      "IQ4_NL", "IQ4_XS", "MXFP4"};

inline const BlockFormat& FormatNamed(std::string_view name) {
  const BlockFormat* const format = FindBlockFormat(name);
  LC_CHECK(format != nullptr, "{}", name);
  return *format;
}

// Calls f with a null pointer to the format's struct.
template <typename F>
void CallForBlock(std::string_view name, const F& f) {
  const auto call = [&]<typename Block>(std::string_view block, const Block* null) {
    if (name == block) f(null);
  };
  using namespace blocks;
  call("Q4_0", static_cast<const Q4_0*>(nullptr));
  call("Q4_1", static_cast<const Q4_1*>(nullptr));
  call("Q5_0", static_cast<const Q5_0*>(nullptr));
  call("Q5_1", static_cast<const Q5_1*>(nullptr));
  call("Q8_0", static_cast<const Q8_0*>(nullptr));
  call("Q2_K", static_cast<const Q2_K*>(nullptr));
  call("Q3_K", static_cast<const Q3_K*>(nullptr));
  call("Q4_K", static_cast<const Q4_K*>(nullptr));
  call("Q5_K", static_cast<const Q5_K*>(nullptr));
  call("Q6_K", static_cast<const Q6_K*>(nullptr));
  call("IQ4_NL", static_cast<const IQ4_NL*>(nullptr));
  call("IQ4_XS", static_cast<const IQ4_XS*>(nullptr));
  call("MXFP4", static_cast<const MXFP4*>(nullptr));
}

// Weights in blocks of any bits, with the values that the format gives them.
struct BlockWeights {
  const BlockFormat* format;
  int64_t rows, cols;
  std::vector<std::byte> blocks;
  std::vector<float> values;

  // any_scales: all finite scales; otherwise they are normally distributed, so that no few blocks
  // decide a sum.
  BlockWeights(Random& random, std::string_view name, int64_t out, int64_t in,
               bool any_scales = false)
      : format(&FormatNamed(name)),
        rows(out),
        cols(in),
        blocks(static_cast<size_t>(out * in / format->values * format->bytes)),
        values(static_cast<size_t>(out * in)) {
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random.Integer(0, 255));
    CallForBlock(name, [&]<typename Block>(const Block*) {
      auto* block = reinterpret_cast<Block*>(blocks.data());
      for (int64_t i = 0; i < rows * cols / Block::kValues; ++i) {
        SetScales(random, any_scales, block[i]);
      }
    });
    format->to_float(blocks.data(), rows * cols / format->values, values.data());
  }

  MatrixView view() { return MatrixView::OfBlocks(blocks.data(), *format, rows, cols); }
  std::vector<std::byte> Packed() {
    std::vector<std::byte> packed(PackedBytes(*format, rows, cols), std::byte{0xcd});
    PackBlocks(view(), packed.data());
    return packed;
  }
  float At(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * cols + col)]; }

 private:
  static void SetHalf(Random& random, bool any, blocks::Bytes2& half) {
    uint16_t bits = f16(random.Normal()).bits;
    // An exponent of 31 is infinity or no number.
    while (any && ((bits = static_cast<uint16_t>(random.Integer(0, 65535))) >> 10 & 31) == 31) {
    }
    std::memcpy(half, &bits, 2);
  }
  template <typename Block>
  static void SetScales(Random& random, bool any, Block& block) {
    if constexpr (requires { block.d; }) SetHalf(random, any, block.d);
    if constexpr (requires { block.m; }) SetHalf(random, any, block.m);
    if constexpr (requires { block.exponent; }) {
      block.exponent =
          static_cast<uint8_t>(any ? random.Integer(0, 255) : random.Integer(125, 129));
    }
  }
};

}  // namespace litecache::ops
