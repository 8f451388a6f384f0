#include "base/quantize_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "base/block_layout.h"
#include "base/dtype.h"
#include "base/quantize_scales.h"

namespace litecache {
namespace {

void PutHalf(float value, blocks::Bytes2& out) {
  const f16 half(value);
  out[0] = static_cast<uint8_t>(half.bits & 0xff);
  out[1] = static_cast<uint8_t>(half.bits >> 8);
}

bool AllFinite(std::span<const float> x) {
  bool finite = true;
  for (const float value : x) {
    constexpr uint32_t kExponent = 0x7f800000;
    finite &= (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
  }
  return finite;
}

// Writes the levels of values: integers in [low, high].
void PutLevels(std::span<const float> x, float scale, float minimum, int low, int high,
               int* levels) {
  const float inverse = quantize::Inverse(scale);
  for (size_t i = 0; i < x.size(); ++i) {
    levels[i] = static_cast<int>(quantize::Level(
        (x[i] - minimum) * inverse, static_cast<float>(low), static_cast<float>(high)));
  }
}

template <typename Block>
void PutNotANumber(Block& block) {
  PutHalf(std::numeric_limits<float>::quiet_NaN(), block.d);
}
void PutNotANumber(blocks::MXFP4& block) {
  block.exponent = 255;
  std::ranges::fill(block.q, 0x77);
}

// Calls quantize(x, block) for every block; one with a value that is not finite becomes NaN.
template <typename Block, typename Quantize>
void ForEachBlock(const float* values, int64_t count, std::byte* out, const Quantize& quantize) {
  static_assert(alignof(Block) == 1);
  auto* block = reinterpret_cast<Block*>(out);
  for (int64_t b = 0; b < count; ++b, ++block, values += Block::kValues) {
    const std::span<const float> x(values, Block::kValues);
    *block = Block{};
    if (AllFinite(x)) {
      quantize(x, *block);
    } else {
      PutNotANumber(*block);
    }
  }
}

void PutNibbles(const int* levels, uint8_t (&q)[16]) {
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<uint8_t>((levels[i] & 15) | (levels[i + 16] & 15) << 4);
  }
}
// The code of the nearest value, of two the one of the lesser magnitude.
int NearestFp4(float x) {
  const float magnitude = std::abs(x);
  int code = 0;
  for (const float middle : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
    code += magnitude > middle ? 1 : 0;
  }
  return x < 0 ? code + 8 : code;
}

void PutFifthBits(const int* levels, uint8_t (&h)[4]) {
  for (int i = 0; i < blocks::kSmall; ++i) {
    h[i / 8] = static_cast<uint8_t>(h[i / 8] | (levels[i] >> 4 & 1) << (i % 8));
  }
}

// Eight groups' scales and minima, 6 bits each, as GroupScales reads them.
void PutGroupScales(const std::array<quantize::Group::Multiples, 8>& groups,
                    blocks::GroupScales* out) {
  for (size_t g = 0; g < 4; ++g) {
    const auto &low = groups[g], &high = groups[g + 4];
    out->bytes[g] = static_cast<uint8_t>(low.scale | high.scale >> 4 << 6);
    out->bytes[g + 4] = static_cast<uint8_t>(low.minimum | high.minimum >> 4 << 6);
    out->bytes[g + 8] = static_cast<uint8_t>((high.scale & 15) | (high.minimum & 15) << 4);
  }
}

// What Q4_K and Q5_K share: the scales, and every value's level in [0, highest].
template <typename Block>
void QuantizeGroups(std::span<const float> x, int highest, Block* block, int* levels) {
  constexpr size_t kValues = 32, kGroups = 8;
  std::array<quantize::Affine, kGroups> fits;
  float scale = 0, minimum = 0;
  for (size_t g = 0; g < kGroups; ++g) {
    fits[g] = quantize::Group(x.subspan(g * kValues, kValues)).Fit(highest);
    scale = std::max(scale, fits[g].scale);
    minimum = std::min(minimum, fits[g].minimum);
  }
  const float d = quantize::AsHalf(scale / 63), m = quantize::AsHalf(-minimum / 63);
  PutHalf(d, block->d);
  PutHalf(m, block->m);
  std::array<quantize::Group::Multiples, kGroups> multiples;
  for (size_t g = 0; g < kGroups; ++g) {
    const auto values = x.subspan(g * kValues, kValues);
    multiples[g] = quantize::Group(values).Round(fits[g], d, m, highest);
    PutLevels(values, d * static_cast<float>(multiples[g].scale),
              -m * static_cast<float>(multiples[g].minimum), 0, highest, levels + g * kValues);
  }
  PutGroupScales(multiples, &block->scales);
}

// Group g of 8: the low halves of 32 bytes, or the high ones.
void PutGroupNibbles(const int* levels, uint8_t (&q)[128]) {
  for (int i = 0; i < 128; ++i) {
    const int* low = levels + i / 32 * 64 + i % 32;
    q[i] = static_cast<uint8_t>((low[0] & 15) | (low[32] & 15) << 4);
  }
}

// The 16 groups' scales as multiples of one, in [-128, 127], and the levels.
void QuantizeSixBits(std::span<const float> x, blocks::Q6_K* block, int* levels) {
  constexpr int kLow = 32;
  constexpr size_t kValues = 16, kGroups = 16;
  std::array<float, kGroups> scales;
  for (size_t g = 0; g < kGroups; ++g) {
    scales[g] = quantize::Group(x.subspan(g * kValues, kValues)).Symmetric(kLow);
  }
  const float d = quantize::AsHalf(quantize::Extreme(scales) / -128);
  PutHalf(d, block->d);
  for (size_t g = 0; g < kGroups; ++g) {
    const float multiple = quantize::Level(scales[g] * quantize::Inverse(d), -128, 127);
    block->scales[g] = static_cast<int8_t>(multiple);
    PutLevels(x.subspan(g * kValues, kValues), d * multiple, 0, -kLow, kLow - 1,
              levels + g * kValues);
  }
}

}  // namespace

void QuantizeQ8_0(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q8_0>(values, count, out, [](std::span<const float> x, blocks::Q8_0& block) {
    constexpr int kMost = 127;
    float scale = quantize::ExactScale(x, kMost, kMost);
    if (scale == 0) scale = quantize::AsHalf(std::abs(quantize::Extreme(x)) / kMost);
    int levels[blocks::kSmall] = {};
    PutLevels(x, scale, 0, -kMost, kMost, levels);
    PutHalf(scale, block.d);
    for (int i = 0; i < blocks::kSmall; ++i) block.q[i] = static_cast<int8_t>(levels[i]);
  });
}

void QuantizeQ4_0(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q4_0>(values, count, out, [](std::span<const float> x, blocks::Q4_0& block) {
    const float scale = quantize::SymmetricScale(x, 8);
    int levels[blocks::kSmall] = {};
    PutLevels(x, scale, 0, -8, 7, levels);
    for (int& level : levels) level += 8;
    PutHalf(scale, block.d);
    PutNibbles(levels, block.q);
  });
}

void QuantizeQ5_0(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q5_0>(values, count, out, [](std::span<const float> x, blocks::Q5_0& block) {
    const float scale = quantize::SymmetricScale(x, 16);
    int levels[blocks::kSmall] = {};
    PutLevels(x, scale, 0, -16, 15, levels);
    for (int& level : levels) level += 16;
    PutHalf(scale, block.d);
    PutNibbles(levels, block.q);
    PutFifthBits(levels, block.h);
  });
}

void QuantizeQ4_1(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q4_1>(values, count, out, [](std::span<const float> x, blocks::Q4_1& block) {
    const auto [scale, minimum] = quantize::AffineScale(x, 15);
    int levels[blocks::kSmall] = {};
    PutLevels(x, scale, minimum, 0, 15, levels);
    PutHalf(scale, block.d);
    PutHalf(minimum, block.m);
    PutNibbles(levels, block.q);
  });
}

void QuantizeQ5_1(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q5_1>(values, count, out, [](std::span<const float> x, blocks::Q5_1& block) {
    const auto [scale, minimum] = quantize::AffineScale(x, 31);
    int levels[blocks::kSmall] = {};
    PutLevels(x, scale, minimum, 0, 31, levels);
    PutHalf(scale, block.d);
    PutHalf(minimum, block.m);
    PutNibbles(levels, block.q);
    PutFifthBits(levels, block.h);
  });
}

void QuantizeQ4_K(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q4_K>(values, count, out, [](std::span<const float> x, blocks::Q4_K& block) {
    int levels[blocks::kLarge] = {};
    QuantizeGroups(x, 15, &block, levels);
    PutGroupNibbles(levels, block.q);
  });
}

void QuantizeQ5_K(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q5_K>(values, count, out, [](std::span<const float> x, blocks::Q5_K& block) {
    int levels[blocks::kLarge] = {};
    QuantizeGroups(x, 31, &block, levels);
    PutGroupNibbles(levels, block.q);
    for (int i = 0; i < blocks::kLarge; ++i) {
      block.h[i % 32] = static_cast<uint8_t>(block.h[i % 32] | (levels[i] >> 4 & 1) << (i / 32));
    }
  });
}

void QuantizeQ6_K(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::Q6_K>(values, count, out, [](std::span<const float> x, blocks::Q6_K& block) {
    int levels[blocks::kLarge] = {};
    QuantizeSixBits(x, &block, levels);
    for (int i = 0; i < blocks::kLarge; ++i) {
      const int level = levels[i] + 32, half = i / 128, at = i % 128;
      uint8_t& low = block.q[half * 64 + at % 64];
      uint8_t& high = block.h[half * 32 + at % 32];
      low = static_cast<uint8_t>(low | (level & 15) << (at / 64 * 4));
      high = static_cast<uint8_t>(high | level >> 4 << (at / 32 * 2));
    }
  });
}

void QuantizeMXFP4(const float* values, int64_t count, std::byte* out) {
  ForEachBlock<blocks::MXFP4>(
      values, count, out, [](std::span<const float> x, blocks::MXFP4& block) {
        const float largest = std::abs(quantize::Extreme(x));
        if (largest == 0) return;
        constexpr int kBias = 127, kMost = 254;
        const int first = std::clamp(std::ilogb(largest) - 2 + kBias, 0, kMost - 1);
        float least = std::numeric_limits<float>::infinity();
        for (const int exponent : {first, first + 1}) {
          const float inverse = std::ldexp(1.0f, kBias - exponent);
          int levels[blocks::kSmall] = {};
          float error = 0;  // in units of the first scale's square
          for (size_t i = 0; i < x.size(); ++i) {
            levels[i] = NearestFp4(x[i] * inverse);
            const float off = x[i] * inverse - 0.5f * blocks::kDoubledFp4[levels[i]];
            error += exponent == first ? off * off : 4 * off * off;
          }
          if (error >= least) continue;
          least = error;
          block.exponent = static_cast<uint8_t>(exponent);
          PutNibbles(levels, block.q);
        }
      });
}

}  // namespace litecache
