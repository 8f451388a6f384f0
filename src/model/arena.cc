#include "model/arena.h"

#include <algorithm>

namespace litecache::model {

MatrixView Arena::Take(int64_t rows, int64_t cols) {
  constexpr size_t kAlignment = 64;  // a cache line, and the widest vector
  const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
  std::byte* data = base_ == nullptr ? nullptr : base_ + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  peak_ = std::max(peak_, used_);
  return MatrixView::Of(data, DType::kF32, rows, cols);
}

}  // namespace litecache::model
