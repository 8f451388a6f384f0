// Twins of the dense operations (ops/embedding.h, linear.h, norm.h, rope.h, activation.h). All
// memory is the device's, ids and positions too. Activations are f32 or, where noted, bf16: what
// feeds a matrix product has the product's dtype already, so nothing converts it on the way.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/linear.h"

namespace litecache::ops::cuda {

// y [T, hidden] f32 = rows `ids` (device, [T]) of table (bf16 or f32); kAdd adds.
void Embedding(Stream& stream, const MatrixView& table, const int32_t* ids, const MatrixView& y,
               Epilogue epilogue);

// x [T, in] in the weight's dtype; weight [out, in] bf16 or f32; bias [out] f32 or null; y [T, out]
// f32 or bf16 (kAdd: f32). bf16: sums in f32. Up to 8 rows or so a bandwidth-bound GEMV (as many as
// cuBLASLt does worse for: ops/cuda/gemv.cu says where), more rows cuBLASLt.
void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue);

// Several products of one x: one launch where a GEMV serves.
struct LinearTarget {
  MatrixView weight;
  const float* bias = nullptr;
  MatrixView y;
};
void Linears(Stream& stream, const MatrixView& x, std::span<const LinearTarget> targets);

// Loads cuBLASLt (of the machine's CUDA, at run time) and takes its workspace. Throws DeviceError
// naming the library where it is missing. Call once, before a graph is captured.
void PrepareLinear(Stream& stream);

// Heads of width cols / groups are normed one by one (ops/norm.h). x f32; y f32 (may be x) or bf16.
void RmsNorm(Stream& stream, const MatrixView& x, const float* weight, float epsilon,
             int64_t groups, const MatrixView& y);
void LayerNorm(Stream& stream, const MatrixView& x, const float* weight, const float* bias,
               float epsilon, const MatrixView& y);

// In place, x f32; positions device, [T]; inv_freq device, [head_dim / 2].
void Rope(Stream& stream, const MatrixView& x, const int32_t* positions, int64_t heads,
          const float* inv_freq, float attention_factor);

// y = silu(gate) * up, all in one dtype (bf16 or f32), y may be gate; arithmetic in f32.
void SiluMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y);
void Relu(Stream& stream, const MatrixView& x);

// f32 <-> bf16, [T, n].
void Convert(Stream& stream, const MatrixView& x, const MatrixView& y);

// ids[i] = argmax of logits row i (f32; the lowest id of equals); finite[i] = 0 where a logit of
// the row is not finite. Device memory.
void ArgMax(Stream& stream, const MatrixView& logits, int32_t* ids, int32_t* finite);

}  // namespace litecache::ops::cuda
