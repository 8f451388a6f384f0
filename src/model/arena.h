// Activation matrices, placed one after another in one buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::model {

// Hands out matrices from `base`; with a null base it only counts, so that the code that places
// a workspace is the code that sizes it.
class Arena {
 public:
  explicit Arena(std::byte* base = nullptr) : base_(base) {}

  MatrixView Take(int64_t rows, int64_t cols, DType dtype = DType::kF32);
  size_t used() const { return used_; }
  // Returns to an earlier used(): memory allocated since then may be overwritten.
  void Rewind(size_t used) { used_ = used; }
  // The largest value of used().
  size_t peak() const { return peak_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
  size_t peak_ = 0;
};

}  // namespace litecache::model
