// The formats that weights are stored in, with the names and the numbers that ggml gives them:
// plain numbers, and blocks of quantized values that share a scale. Where a block's bytes are is in
// block_layout.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace litecache {

struct BlockFormat {
  uint32_t type = 0;      // ggml's number, as in the tensor table of a GGUF file
  std::string_view name;  // "Q4_K"; of plain numbers the same as in safetensors: "BF16"
  int64_t values = 1;     // in a block
  int64_t bytes = 0;      // of a block
  // Writes `blocks` * values floats; `data` may be unaligned. Bit for bit the values that the
  // Python package gguf gives (a NaN for a NaN). Null: the format's size is known, its values are
  // not read.
  void (*to_float)(const std::byte* data, int64_t blocks, float* out) = nullptr;

  // Writes `blocks` blocks whose values are near `values` (quantize_blocks.h says how near). Null:
  // blocks of this format are only read.
  void (*from_float)(const float* values, int64_t blocks, std::byte* out) = nullptr;

  bool quantized() const { return values > 1; }
};

// All formats that ggml has, but for those of single CPUs' layouts.
std::span<const BlockFormat> BlockFormats();
// Null: there is none.
const BlockFormat* FindBlockFormat(uint32_t type);
const BlockFormat* FindBlockFormat(std::string_view name);

}  // namespace litecache
