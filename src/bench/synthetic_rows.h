// Random rows in place of a processed context.
#pragma once

#include <cstdint>
#include <random>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::bench {

// Normally distributed values in a device's memory. Views of it begin at random offsets, so that
// every chunk of a context has different rows although the values are drawn once: drawing them
// takes far longer than storing them.
class SyntheticRows {
 public:
  // Views have at most `rows` rows of `width` values. dtype: f32 or bf16.
  SyntheticRows(Device& device, DType dtype, int64_t rows, int64_t width, uint64_t seed);

  // width: at most the constructor's. Aligned to 16 bytes; valid as long as this object exists.
  MatrixView Next(int64_t rows, int64_t width);

 private:
  DType dtype_;
  int64_t values_;
  Buffer memory_;
  std::mt19937_64 random_;
};

}  // namespace litecache::bench
