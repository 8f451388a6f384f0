// y = x W^T + b: every matrix product of a model.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/epilogue.h"

namespace litecache::ops {

// One product of x [T, in]: weight [out, in] bf16, f16 or f32; bias [out] f32 or null; y [T, out]
// f32, not overlapping x.
struct LinearPart {
  MatrixView weight;
  const float* bias = nullptr;
  MatrixView y;
};

// x [T, in] f32.
// Arithmetic: bf16 weights round x to bf16 and accumulate in f32 (dot products of pairs, where the
// CPU has them, take denormal numbers for 0); f16 and f32 weights multiply in f32. On the CPU up to
// 16 rows (4 without BF16 dot products, and for other weights) run a bandwidth-bound GEMV, more a
// blocked GEMM, large ones oneDNN where the CPU has AMX (ops/linear/linear_cpu.cc).
// On a CUDA stream x has the weights' dtype, bf16 or f32, and y may be bf16
// (ops/linear/linear_cuda.h). Every element of y is one chain of sums in a fixed order: its bits
// depend neither on the number of threads nor, below and above the GEMV's limit, on the other rows
// of the batch (oneDNN: on the threads only not). GEMV and GEMM differ by the rounding of their
// sums.
void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue = Epilogue::kStore);

// Several products of the same x, the same bits as one after another. A few rows take one pass of
// all threads: products of a few hundred outputs are too short to be handed out alone.
void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue = Epilogue::kStore);

// A product whose y is bf16 and rounded once, bias included: what Linear() gives in f32, rounded.
// `rounded`: the bias's own values in bf16 [out]; null with the bias.
struct RoundedPart {
  LinearPart part;
  const uint16_t* rounded = nullptr;
};
// On a CUDA stream only, for many rows (on few a bias is added to what has been rounded); bf16
// weights.
void RoundedLinear(Stream& stream, const MatrixView& x, std::span<const RoundedPart> parts);

// The feed-forward block's gate: gate.y = silu(x gate^T) * (x up^T), biases added before. The two
// weights have the same shape; up.y is scratch of gate.y's shape and dtype.
void GatedLinear(Stream& stream, const MatrixView& x, const LinearPart& gate, const LinearPart& up);

// Memory that products of up to `rows` rows, with weights of up to `depth` inputs, keep on the
// CPU's threads; oneDNN's own (a slice's packed weights a thread) not counted.
uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads);

}  // namespace litecache::ops
