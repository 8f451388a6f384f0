#include "ops/linear/quantized/packed_blocks.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/block_layout.h"
#include "base/error.h"
#include "ops/linear/quantized/packed_layout.h"

namespace litecache::ops {
namespace {

// What a row has in a chunk, before its bits are distributed.
struct RowChunk {
  // Not negative, of 8 bits in two's complement, or DoubledFp4's codes.
  uint8_t integers[kChunkColumns];
  uint16_t scale[8], minimum[8];  // of groups; of layouts with factors, the first ones
  uint8_t factor[16], minimum_factor[16];
};

uint16_t Bits(const blocks::Bytes2& bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

// Of 16 bytes, the low halves and then the high halves.
void Halves(const uint8_t* q, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = q[i] & 15;
  for (int i = 0; i < 16; ++i) out[i + 16] = q[i] >> 4;
}

void AddFifthBits(const uint8_t (&h)[4], uint8_t* out) {
  for (int byte = 0; byte < 4; ++byte) {
    // The bits of a byte to one byte each, which no carry leaves.
    uint64_t bits = h[byte] * uint64_t{0x0101010101010101} & uint64_t{0x8040201008040201};
    bits = ((bits + uint64_t{0x007f7f7f7f7f7f7f}) >> 7 & uint64_t{0x0101010101010101}) << 4;
    uint64_t values = 0;
    std::memcpy(&values, out + byte * 8, 8);
    values |= bits;
    std::memcpy(out + byte * 8, &values, 8);
  }
}

void Look(const int8_t (&table)[16], int count, uint8_t* out) {
  for (int i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(table[out[i]]);
}

// A block of 32 columns is group `g` of its chunk.

void Read(const blocks::Q4_0& block, int g, RowChunk& out) {
  out.scale[g] = Bits(block.d);
  Halves(block.q, out.integers + g * 32);
}

void Read(const blocks::Q4_1& block, int g, RowChunk& out) {
  out.scale[g] = Bits(block.d);
  out.minimum[g] = Bits(block.m);
  Halves(block.q, out.integers + g * 32);
}

void Read(const blocks::Q5_0& block, int g, RowChunk& out) {
  out.scale[g] = Bits(block.d);
  Halves(block.q, out.integers + g * 32);
  AddFifthBits(block.h, out.integers + g * 32);
}

void Read(const blocks::Q5_1& block, int g, RowChunk& out) {
  out.scale[g] = Bits(block.d);
  out.minimum[g] = Bits(block.m);
  Halves(block.q, out.integers + g * 32);
  AddFifthBits(block.h, out.integers + g * 32);
}

void Read(const blocks::Q8_0& block, int g, RowChunk& out) {
  out.scale[g] = Bits(block.d);
  std::memcpy(out.integers + g * 32, block.q, 32);
}

void Read(const blocks::IQ4_NL& block, int g, RowChunk& out) {
  out.scale[g] = Bits(block.d);
  Halves(block.q, out.integers + g * 32);
  Look(blocks::kUneven, 32, out.integers + g * 32);
}

void Read(const blocks::MXFP4& block, int g, RowChunk& out) {
  // 2^(exponent - 128), the scale of the doubled values, in bf16.
  const int exponent = block.exponent;
  out.scale[g] = static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
  Halves(block.q, out.integers + g * 32);
}

// Integer i of 128 in bits 2 * (i / 32) of byte i % 32.
void ReadPairsOfBits(const uint8_t* q, uint8_t* out) {
  for (int i = 0; i < 32; ++i) out[i] = q[i] & 3;
  for (int i = 0; i < 32; ++i) out[i + 32] = q[i] >> 2 & 3;
  for (int i = 0; i < 32; ++i) out[i + 64] = q[i] >> 4 & 3;
  for (int i = 0; i < 32; ++i) out[i + 96] = q[i] >> 6;
}

// Adds bit g of byte i of 32, as bit kBit, to integer i of group g of 32.
template <int kBit>
void AddBits(const uint8_t (&h)[32], uint8_t* out) {
  const auto add = [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
    const auto add_group = [&]<int kGroup>() {
      for (int i = 0; i < 32; ++i) {
        out[kGroup * 32 + i] |= static_cast<uint8_t>((h[i] >> kGroup & 1) << kBit);
      }
    };
    (add_group.template operator()<kGroups>(), ...);
  };
  add(std::make_integer_sequence<int, 8>());
}

void Read(const blocks::Q2_K& block, int, RowChunk& out) {
  out.scale[0] = Bits(block.d);
  out.minimum[0] = Bits(block.m);
  for (int g = 0; g < 16; ++g) {
    out.factor[g] = block.scales[g] & 15;
    out.minimum_factor[g] = block.scales[g] >> 4;
  }
  for (int half = 0; half < 2; ++half) {
    ReadPairsOfBits(block.q + half * 32, out.integers + half * 128);
  }
}

void Read(const blocks::Q3_K& block, int, RowChunk& out) {
  out.scale[0] = Bits(block.d);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? blocks::Low(block.scales[g]) : blocks::High(block.scales[g - 8]);
    const int high = block.scales[8 + g % 4] >> (g / 4 * 2) & 3;
    out.factor[g] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  for (int half = 0; half < 2; ++half) {
    ReadPairsOfBits(block.q + half * 32, out.integers + half * 128);
  }
  AddBits<2>(block.h, out.integers);
}

// The low halves of 32 bytes, then the high ones, four times.
void ReadHalves(const uint8_t (&q)[128], uint8_t* out) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) out[pair * 64 + i] = q[pair * 32 + i] & 15;
    for (int i = 0; i < 32; ++i) out[pair * 64 + 32 + i] = q[pair * 32 + i] >> 4;
  }
}

template <typename Block>
void ReadScalesAndHalves(const Block& block, RowChunk& out) {
  out.scale[0] = Bits(block.d);
  out.minimum[0] = Bits(block.m);
  for (int g = 0; g < 8; ++g) {
    out.factor[g] = static_cast<uint8_t>(block.scales.Scale(g));
    out.minimum_factor[g] = static_cast<uint8_t>(block.scales.Minimum(g));
  }
  ReadHalves(block.q, out.integers);
}

void Read(const blocks::Q4_K& block, int, RowChunk& out) { ReadScalesAndHalves(block, out); }

void Read(const blocks::Q5_K& block, int, RowChunk& out) {
  ReadScalesAndHalves(block, out);
  AddBits<4>(block.h, out.integers);
}

void Read(const blocks::Q6_K& block, int, RowChunk& out) {
  out.scale[0] = Bits(block.d);
  std::memcpy(out.factor, block.scales, 16);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *q = block.q + half * 64, *h = block.h + half * 32;
    uint8_t* to = out.integers + half * 128;
    for (int i = 0; i < 32; ++i) {
      to[i] = static_cast<uint8_t>((q[i] & 15) | (h[i] << 4 & 0x30));
      to[i + 32] = static_cast<uint8_t>((q[i + 32] & 15) | (h[i] << 2 & 0x30));
      to[i + 64] = static_cast<uint8_t>(q[i] >> 4 | (h[i] & 0x30));
      to[i + 96] = static_cast<uint8_t>(q[i + 32] >> 4 | (h[i] >> 2 & 0x30));
    }
  }
}

void Read(const blocks::IQ4_XS& block, int, RowChunk& out) {
  out.scale[0] = Bits(block.d);
  for (int g = 0; g < 8; ++g) {
    const int low = block.low_scales[g / 2] >> (g % 2 * 4) & 15;
    const int high = block.high_scales[g / 4] >> (g % 4 * 2) & 3;
    out.factor[g] = static_cast<uint8_t>((low | high << 4) - 32);
    Halves(block.q + g * 16, out.integers + g * 32);
  }
  Look(blocks::kUneven, kChunkColumns, out.integers);
}

// Writes bits [kFirst, kFirst + kBits) of a row's integers to their plane. Constant shifts, because
// the compiler vectorizes no others of bytes.
template <int kBits, int kFirst>
void WritePlane(const uint8_t* integers, int row, uint8_t* plane) {
  constexpr int kSteps = kBits == 8 ? 1 : 4 / kBits;  // in a word
  constexpr int kWords = kBits == 8 ? 2 : 1;          // of a step
  constexpr uint8_t kMask = (1 << kBits) - 1;
  for (int step = 0; step < kChunkSteps; step += kSteps) {
    const uint8_t* const from = integers + step * 32;
    uint8_t words[kWords][16] = {};
    if constexpr (kBits == 8) {
      std::memcpy(words, from, 32);
    } else {
      const auto add = [&]<int... kParts>(std::integer_sequence<int, kParts...>) {
        for (int i = 0; i < 16; ++i) {
          words[0][i] = static_cast<uint8_t>(
              (((from[kParts * 16 + i] >> kFirst & kMask) << (kParts * kBits)) | ...));
        }
      };
      add(std::make_integer_sequence<int, 2 * kSteps>());
    }
    for (int half = 0; half < kWords; ++half) {
      uint8_t* const to = plane + PackedWordAt(kBits, row, step, 0, half);
      for (int q = 0; q < 4; ++q) std::memcpy(to + q * 16, words[half] + q * 4, 4);
    }
  }
}

void WritePlanes(const PackedLayout& layout, const RowChunk& row_chunk, int row, uint8_t* chunk) {
  uint8_t integers[kChunkColumns];  // in the order of a word's bytes
  for (int i = 0; i < kChunkColumns; i += 4) {
    for (int j = 0; j < 4; ++j) integers[i + PackedByteOf(j)] = row_chunk.integers[i + j];
  }
  if (layout.bits == 8) return WritePlane<8, 0>(integers, row, chunk);
  uint8_t* const high = chunk + layout.HighAt();
  if (layout.bits == 2) {
    WritePlane<2, 0>(integers, row, chunk);
    if (layout.high_bits == 1) WritePlane<1, 2>(integers, row, high);
    return;
  }
  WritePlane<4, 0>(integers, row, chunk);
  if (layout.high_bits == 1) WritePlane<1, 4>(integers, row, high);
  if (layout.high_bits == 2) WritePlane<2, 4>(integers, row, high);
}

void WriteScales(const PackedLayout& layout, const RowChunk& from, int row, uint8_t* chunk) {
  uint8_t* const records = chunk + layout.RecordsAt() + row * layout.Pairs() * layout.RecordBytes();
  const auto write = [&](const auto* scales, const auto* minima) {
    constexpr size_t kBytes = 2 * sizeof(*scales);
    for (int pair = 0; pair < layout.Pairs(); ++pair) {
      uint8_t* const record = records + pair * layout.RecordBytes();
      std::memcpy(record, scales + 2 * pair, kBytes);
      if (layout.minimum) std::memcpy(record + kBytes, minima + 2 * pair, kBytes);
    }
  };
  if (!layout.super) return write(from.scale, from.minimum);
  write(from.factor, from.minimum_factor);
  uint8_t* const scales = chunk + layout.ScalesAt() + row * layout.ScaleBytes();
  std::memcpy(scales, from.scale, 2);
  if (layout.minimum) std::memcpy(scales + 2, from.minimum, 2);
}

template <typename Block>
void Pack(const MatrixView& matrix, const PackedLayout& layout, uint8_t* out) {
  constexpr int kBlocks = kChunkColumns / Block::kValues;  // in a chunk
  const int64_t blocks = matrix.cols / Block::kValues, chunks = PackedChunks(matrix.cols);
  for (int64_t first = 0; first < matrix.rows; first += kPackedRows) {
    const int rows = static_cast<int>(std::min(kPackedRows, matrix.rows - first));
    for (int64_t c = 0; c < chunks; ++c, out += layout.Bytes()) {
      const int count = static_cast<int>(std::min<int64_t>(kBlocks, blocks - c * kBlocks));
      if (rows < kPackedRows || count < kBlocks) {
        std::memset(out, 0, static_cast<size_t>(layout.Bytes()));
      }
      for (int row = 0; row < rows; ++row) {
        const auto* from = static_cast<const std::byte*>(matrix.data) +
                           (first + row) * matrix.RowBytes() +
                           c * kBlocks * static_cast<int64_t>(sizeof(Block));
        RowChunk row_chunk;
        if (count < kBlocks) row_chunk = {};
        for (int i = 0; i < count; ++i) {
          Read(reinterpret_cast<const Block*>(from)[i], i, row_chunk);
        }
        WritePlanes(layout, row_chunk, row, out);
        WriteScales(layout, row_chunk, row, out);
      }
    }
  }
}

const PackedLayout& LayoutOf(const BlockFormat& format) {
  const int index = PackedLayoutOf(format.name);
  LC_CHECK(index >= 0, "{} is not packed", format.name);
  return kPackedLayouts[index];
}

}  // namespace

uint64_t PackedBytes(const BlockFormat& format, int64_t rows, int64_t cols) {
  LC_CHECK(rows >= 0 && cols >= 0);
  const int64_t tiles = (rows + kPackedRows - 1) / kPackedRows;
  return static_cast<uint64_t>(tiles * PackedChunks(cols) * LayoutOf(format).Bytes());
}

void PackBlocks(const MatrixView& matrix, std::byte* out) {
  LC_CHECK(matrix.dtype == DType::kBlocks && matrix.format != nullptr);
  const std::string_view name = matrix.format->name;
  const PackedLayout& layout = LayoutOf(*matrix.format);
  bool found = false;
  const auto pack = [&]<typename Block>(std::string_view block_name, const Block*) {
    if (name != block_name) return;
    static_assert(alignof(Block) == 1);
    Pack<Block>(matrix, layout, reinterpret_cast<uint8_t*>(out));
    found = true;
  };
  using namespace blocks;
  pack("Q4_0", static_cast<const Q4_0*>(nullptr));
  pack("Q4_1", static_cast<const Q4_1*>(nullptr));
  pack("Q5_0", static_cast<const Q5_0*>(nullptr));
  pack("Q5_1", static_cast<const Q5_1*>(nullptr));
  pack("Q8_0", static_cast<const Q8_0*>(nullptr));
  pack("Q2_K", static_cast<const Q2_K*>(nullptr));
  pack("Q3_K", static_cast<const Q3_K*>(nullptr));
  pack("Q4_K", static_cast<const Q4_K*>(nullptr));
  pack("Q5_K", static_cast<const Q5_K*>(nullptr));
  pack("Q6_K", static_cast<const Q6_K*>(nullptr));
  pack("IQ4_NL", static_cast<const IQ4_NL*>(nullptr));
  pack("IQ4_XS", static_cast<const IQ4_XS*>(nullptr));
  pack("MXFP4", static_cast<const MXFP4*>(nullptr));
  LC_CHECK(found);
}

}  // namespace litecache::ops
