// ops/dense/norm.h on a GPU; all pointers are device memory.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

// Groups of cols / groups columns are normalized separately (ops/dense/norm.h). x f32; y f32 (may
// be x) or bf16.
void RmsNorm(Stream& stream, const MatrixView& x, const float* weight, float epsilon,
             int64_t groups, const MatrixView& y);
void RmsNormTwice(Stream& stream, const MatrixView& x, const float* first, const float* second,
                  float epsilon, const MatrixView& y);
void LayerNorm(Stream& stream, const MatrixView& x, const float* weight, const float* bias,
               float epsilon, const MatrixView& y);

}  // namespace litecache::ops::cuda
