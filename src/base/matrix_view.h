// The matrix type of operations: a 2-D view of memory that its caller owns.
#pragma once

#include <cstdint>

#include "base/block_format.h"
#include "base/dtype.h"
#include "base/error.h"

namespace litecache {

// rows x cols elements of `dtype`; row r starts at data + r * RowBytes(). Columns are contiguous.
// Activations are [tokens, features]; weights are [out_features, in_features].
//
// Weights of dtype kBlocks are blocks of `format` along the columns, whose number is a multiple of
// a block's values, without padding: in host memory as in a GGUF file, in a GPU's in the order of
// ops/linear/quantized/packed_blocks.h.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements between rows, >= cols
  // Of dtype kBlocks: the format, and bytes between rows (packed rows: of kPackedRows rows divided
  // by their number, so that Rows() from a multiple of them is right).
  const BlockFormat* format = nullptr;
  int64_t row_bytes = 0;

  // Contiguous view.
  static MatrixView Of(void* data, DType dtype, int64_t rows, int64_t cols) {
    return {data, dtype, rows, cols, cols};
  }
  static MatrixView Of(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }

  static MatrixView OfBlocks(void* data, const BlockFormat& format, int64_t rows, int64_t cols) {
    LC_CHECK(cols % format.values == 0, "{} columns in blocks of {}", cols, format.values);
    return {data, DType::kBlocks, rows, cols, cols, &format, cols / format.values * format.bytes};
  }

  // Bytes from one row to the next.
  int64_t RowBytes() const {
    return format != nullptr ? row_bytes : stride * static_cast<int64_t>(SizeOf(dtype));
  }
  template <typename T>
  T* Row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  // Columns [begin, begin + count) of every row.
  MatrixView Columns(int64_t begin, int64_t count) const {
    LC_CHECK(begin >= 0 && begin + count <= cols && format == nullptr);
    return {static_cast<char*>(data) + begin * static_cast<int64_t>(SizeOf(dtype)), dtype, rows,
            count, stride};
  }
  // Rows [begin, begin + count).
  MatrixView Rows(int64_t begin, int64_t count) const {
    LC_CHECK(begin >= 0 && begin + count <= rows);
    return {static_cast<char*>(data) + begin * RowBytes(),
            dtype,
            count,
            cols,
            stride,
            format,
            row_bytes};
  }
};

}  // namespace litecache
