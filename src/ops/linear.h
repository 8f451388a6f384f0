// y = x W^T + b: every matrix product of a model.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

enum class Epilogue {
  kStore,  // y  = x W^T + b
  kAdd,    // y += x W^T + b (residual stream)
};

// x [T, in] f32; weight [out, in] bf16, f16 or f32; bias [out] f32 or null; y [T, out] f32.
// Arithmetic: bf16 weights round x to bf16 and accumulate in f32; f16 and f32 weights multiply in
// f32. T = 1.. small runs a bandwidth-bound GEMV, larger T a blocked GEMM (linear.cc says where and
// why).
void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue = Epilogue::kStore);

}  // namespace litecache::ops
