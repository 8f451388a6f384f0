// y = x W^T + b: every matrix product of a model.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

enum class Epilogue {
  kStore,  // y  = x W^T + b
  kAdd,    // y += x W^T + b (residual stream)
};

// x [T, in] f32; weight [out, in] bf16, f16 or f32; bias [out] f32 or null; y [T, out] f32, not
// overlapping x.
// Arithmetic: bf16 weights round x to bf16 and accumulate in f32; f16 and f32 weights multiply in
// f32. On the CPU up to 4 rows run a bandwidth-bound GEMV, more a blocked GEMM, large ones oneDNN
// where the CPU has AMX (cpu/linear.cc).
// Every element of y is one chain of sums in a fixed order: its bits depend neither on the number
// of threads nor, below and above the GEMV's limit, on the other rows of the batch (oneDNN: on the
// threads only not). GEMV and GEMM differ by the rounding of their sums.
void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue = Epilogue::kStore);

}  // namespace litecache::ops
