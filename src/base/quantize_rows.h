// Rounds the rows of a matrix to codes with scales, as Hugging Face directories hold them
// (model/quantized_matrix.h reads them): each value is code * scale, and codes are symmetric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace litecache::quantize {

struct RowFormat {
  int bits = 4;           // of a code: 4 or 8, integers around the middle of their range
  bool is_float = false;  // codes of 8 bits are FP8 numbers (base/fp8.h)
  int64_t group = 0;  // neighbouring columns that share a scale, a multiple of 4; 0: a whole row
  DType scale_dtype = DType::kBF16;  // f32, f16 or bf16
  // The scale of integers is the one of the least squared error of a few; otherwise the one that
  // puts the largest magnitude half a step beyond the largest code.
  bool search = true;

  int64_t groups(int64_t cols) const { return group == 0 ? 1 : cols / group; }
  int64_t code_bytes(int64_t cols) const { return cols * bits / 8; }
  int64_t scale_bytes(int64_t cols) const {
    return groups(cols) * static_cast<int64_t>(SizeOf(scale_dtype));
  }
};

// Sums over a row, in f64.
struct RowError {
  double squared_error = 0;
  double squares = 0;  // of the values; not finite if one of them is not: nothing is written then
};

// Writes code_bytes of codes, of which the first is in the lowest bits, and scale_bytes of positive
// scales. row: [cols], a multiple of the group.
RowError RoundRow(const RowFormat& format, std::span<const float> row, std::byte* codes,
                  std::byte* scales);

}  // namespace litecache::quantize
