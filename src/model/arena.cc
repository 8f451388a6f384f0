#include "model/arena.h"

#include <algorithm>

namespace litecache::model {

MatrixView Arena::Take(int64_t rows, int64_t cols, DType dtype) {
  constexpr size_t kAlignment = 256;  // a multiple of cache lines and of matrix units' loads
  const size_t bytes = static_cast<size_t>(rows * cols) * SizeOf(dtype);
  std::byte* data = base_ == nullptr ? nullptr : base_ + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  peak_ = std::max(peak_, used_);
  return MatrixView::Of(data, dtype, rows, cols);
}

}  // namespace litecache::model
