// y = x W^T + b: every matrix product of a model.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/epilogue.h"
#include "ops/common/gate_function.h"

namespace litecache::ops {

// One product of x [T, in]: weight [out, in] bf16, f16, f32 or blocks; bias [out] f32 or null; y
// [T, out] f32, not overlapping x.
struct LinearPart {
  MatrixView weight;
  const float* bias = nullptr;
  MatrixView y;
};

// x [T, in] f32. Arithmetic: with bf16 weights, x is rounded to bf16 and sums are f32 (dot products
// of pairs, if the CPU has them, treat denormal numbers as 0); f16 and f32 weights multiply in f32.
// On the CPU up to 16 rows (4 without BF16 dot products, and for other weights) run a
// bandwidth-bound GEMV, more a blocked GEMM, large ones oneDNN if the CPU has AMX
// (ops/linear/linear_cpu.cc). On a CUDA stream x has the weights' dtype, bf16 or f32, and y may be
// bf16 (ops/linear/linear_cuda.h). Every element of y is one chain of sums in a fixed order: its
// bits depend neither on the number of threads nor, on either side of the GEMV's limit, on the
// other rows of the batch (with oneDNN they are only independent of the threads). GEMV and GEMM
// differ by the rounding of their sums.
//
// Weights in blocks, on the CPU: with AVX2 x is rounded to integers of 14 bits and a sign, the
// nearest multiples of the largest magnitude of 256 values / 16383. Products with the weights'
// integers are exact sums, of 32 values or of as many more with a common scale as fit 32 bits;
// these are scaled and added in f32. Up to 8 rows unpack weights in registers, more unpack them
// once for up to 512 rows (ops/linear/quantized/linear_cpu.h). Without AVX2 blocks are widened to
// f32 and multiply x as it is. Bits are as independent as above. A NaN or an infinity in x makes
// the sums of its row NaN or infinite.
void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue = Epilogue::kStore);

// The most rows that every product with weights of this dtype computes with one kernel, so that a
// row's result has the same bits whichever and however many rows are multiplied with it; 0: none.
// On a GPU on batch-invariant streams (device/machine.h).
int64_t LinearBatchInvariantRows(DeviceType device, DType weight);

// Allocates what products of many rows with quantized weights keep on a CUDA stream. Call before
// such products are recorded; on the CPU it does nothing.
void PrepareQuantizedLinear(Stream& stream);

// Several products of the same x, with the same bits as separate calls (with weights in blocks on a
// GPU, as ops/linear/linear_cuda.h tells). For a few rows all threads share one pass: products of a
// few hundred outputs are too short to distribute separately.
void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue = Epilogue::kStore);

// A product whose y is bf16 and rounded once, bias included: the f32 result of Linear(), rounded.
// rounded: the bias's values in bf16 [out]; null if there is no bias.
struct RoundedPart {
  LinearPart part;
  const uint16_t* rounded = nullptr;
};
// On a CUDA stream only, for many rows (for few rows the bias is added after rounding); bf16
// weights.
void RoundedLinear(Stream& stream, const MatrixView& x, std::span<const RoundedPart> parts);

// The feed-forward block's gate: gate.y = function(x gate^T, x up^T), with biases added before.
// The two weights have the same shape; up.y is scratch of gate.y's shape and dtype.
void GatedLinear(Stream& stream, const MatrixView& x, const LinearPart& gate, const LinearPart& up,
                 const GateFunction& function = kSilu);

// Bytes of scratch that products of up to `rows` rows, with weights of up to `depth` inputs, keep
// on the CPU's threads, without oneDNN's own (each thread's packed slice of weights).
uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads);

}  // namespace litecache::ops
