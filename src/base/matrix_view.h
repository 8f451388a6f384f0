// The matrix type of operations: a 2-D view of memory that its caller owns.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"

namespace litecache {

// rows x cols elements of `dtype`; row r starts at data + r * stride * SizeOf(dtype). Columns are
// contiguous. Activations are [tokens, features]; weights are [out_features, in_features].
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements between rows, >= cols

  // Contiguous view.
  static MatrixView Of(void* data, DType dtype, int64_t rows, int64_t cols) {
    return {data, dtype, rows, cols, cols};
  }
  static MatrixView Of(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }

  template <typename T>
  T* Row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  // Columns [begin, begin + count) of every row.
  MatrixView Columns(int64_t begin, int64_t count) const {
    LC_CHECK(begin >= 0 && begin + count <= cols);
    return {static_cast<char*>(data) + begin * static_cast<int64_t>(SizeOf(dtype)), dtype, rows,
            count, stride};
  }
  // Rows [begin, begin + count).
  MatrixView Rows(int64_t begin, int64_t count) const {
    LC_CHECK(begin >= 0 && begin + count <= rows);
    return {static_cast<char*>(data) + begin * stride * static_cast<int64_t>(SizeOf(dtype)), dtype,
            count, cols, stride};
  }
};

}  // namespace litecache
