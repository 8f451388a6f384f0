// Stores new tokens' rows in bf16, near the memory bandwidth.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Whether AppendBf16Rows() can write rows of this format: bf16, K and V each a multiple of 16
// bytes.
inline bool AppendsBf16(const RowFormat& format) {
  return format.encoding == RowEncoding::kBF16 && format.head_dim % 8 == 0;
}
// Whether it can read such keys or values: f32 or bf16, 8 values at a time.
bool AppendsFrom(const MatrixView& m);

// AppendRows() (rows_cuda.h) for formats and matrices that the two functions above accept.
void AppendBf16Rows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const MatrixView& k, const MatrixView& v);

}  // namespace litecache::ops::cuda
