#include "kv/api/wide_arrays.h"

#include "ops/dense/convert.h"

namespace litecache {

void WideArrays::Begin(Stream& stream, DType dtype, int64_t values) {
  dtype_ = dtype;
  if (dtype == DType::kF32) return;
  const size_t bytes = static_cast<size_t>(values) * sizeof(float);
  if (copies_.size() < bytes) {
    stream.Synchronize();
    copies_ = Buffer();  // free first: the old and the new one need not fit together
    copies_ = device_.Allocate(bytes);
  }
  next_ = copies_.as<float>();
}

MatrixView WideArrays::Place(void* array, int64_t rows, int64_t cols) {
  if (dtype_ == DType::kF32) return MatrixView::Of(static_cast<float*>(array), rows, cols);
  const MatrixView wide = MatrixView::Of(next_, rows, cols);
  next_ += rows * cols;
  return wide;
}

MatrixView WideArrays::Read(Stream& stream, const void* array, int64_t rows, int64_t cols) {
  auto* const readable = const_cast<void*>(array);
  const MatrixView wide = Place(readable, rows, cols);
  if (dtype_ != DType::kF32) {
    ops::Convert(stream, MatrixView::Of(readable, dtype_, rows, cols), wide);
  }
  return wide;
}

void WideArrays::Write(Stream& stream, const MatrixView& wide, void* array) const {
  if (dtype_ == DType::kF32) return;
  ops::Convert(stream, wide, MatrixView::Of(array, dtype_, wide.rows, wide.cols));
}

}  // namespace litecache
