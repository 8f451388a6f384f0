// A caller's arrays as the f32 arrays that a cache attends: the arrays themselves, or, where they
// are bf16 or f16, converted copies.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache {

class WideArrays {
 public:
  explicit WideArrays(Device& device) : device_(device) {}

  // Begins a call whose arrays have this type and `values` elements together. What was returned for
  // the call before is not used any more. Throws CapacityError.
  void Begin(Stream& stream, DType dtype, int64_t values);
  // An array [rows][cols] to be read, one to be written, and that one written.
  MatrixView Read(Stream& stream, const void* array, int64_t rows, int64_t cols);
  MatrixView Place(void* array, int64_t rows, int64_t cols);
  void Write(Stream& stream, const MatrixView& wide, void* array) const;

 private:
  Device& device_;
  Buffer copies_;
  DType dtype_ = DType::kF32;
  float* next_ = nullptr;  // where the next copy begins
};

}  // namespace litecache
