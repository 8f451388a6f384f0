// RMSNorm and LayerNorm over rows. On a CUDA stream weights and biases are device memory and y may
// be bf16.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// y = x / sqrt(mean(x^2) + eps) * weight. x, y [T, groups * n] f32 (may alias); weight [n] f32.
// groups > 1 normalizes each group of n columns by itself with the same weight (Qwen3's q/k norm).
void RmsNorm(Stream& stream, const MatrixView& x, const float* weight, float eps, int64_t groups,
             const MatrixView& y);

// The same rows with two weights: y [2 T, n], first the rows with `first`, then those with
// `second`. y does not overlap x.
void RmsNormTwice(Stream& stream, const MatrixView& x, const float* first, const float* second,
                  float eps, const MatrixView& y);

// y = (x - mean) / sqrt(var + eps) * weight + bias. x, y [T, n] f32 (may alias); weight [n] f32;
// bias [n] f32, or null.
void LayerNorm(Stream& stream, const MatrixView& x, const float* weight, const float* bias,
               float eps, const MatrixView& y);

}  // namespace litecache::ops
