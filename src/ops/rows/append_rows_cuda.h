// Rows of new tokens that are stored in bf16, at the memory's rate.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Whether AppendBf16Rows() writes such rows: bf16, K and V of whole 16-byte pieces.
inline bool AppendsBf16(const RowFormat& format) {
  return format.encoding == RowEncoding::kBF16 && format.head_dim % 8 == 0;
}
// Whether it reads such keys or values: f32 or bf16, 8 values at a time.
bool AppendsFrom(const MatrixView& m);

// AppendRows() (rows_cuda.h) of what the two above say.
void AppendBf16Rows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const MatrixView& k, const MatrixView& v);

}  // namespace litecache::ops::cuda
