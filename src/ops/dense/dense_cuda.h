// Twins of the dense operations (ops/dense/embedding.h, linear.h, norm.h, rope.h, activation.h).
// All memory is the device's, ids and positions too. Activations are f32 or, where noted, bf16:
// what feeds a matrix product has the product's dtype already, so nothing converts it on the way.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/dense/rope.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// y [T, hidden] f32 = rows `ids` (device, [T]) of table (bf16 or f32); kAdd adds. An id the table
// does not have gives NaN: nothing on the device could say so otherwise.
void Embedding(Stream& stream, const MatrixView& table, const int32_t* ids, const MatrixView& y,
               Epilogue epilogue);

// x [T, in] in the weights' dtype, bf16 or f32; y f32, or of bf16 weights bf16 (kAdd: f32). bf16:
// sums in f32; up to 16 rows a bandwidth-bound GEMV, one launch for four parts (gemv_cuda.h),
// before sm_90 for parts below 24 MiB only; the rest and f32 cuBLASLt (gemm_cuda.h).
void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue);

// y bf16, and every bias rounded to bf16 without loss: rounded once (cuBLASLt's epilogue).
void RoundedLinear(Stream& stream, const MatrixView& x, std::span<const RoundedPart> parts);

// gate.y = silu(gate) * up, of one dtype with up.y, which is scratch. Few rows: one launch, and
// only the result is rounded.
void GatedLinear(Stream& stream, const MatrixView& x, const LinearPart& gate, const LinearPart& up);

// Loads cuBLASLt (of the machine's CUDA, at run time) and takes its workspace. Throws DeviceError
// naming the library where it is missing. Call once a stream, before a graph is captured on it
// (otherwise the first product that needs it does so).
void PrepareLinear(Stream& stream);

// Kernels of other streams will hold SMs beside this stream's products of few rows: they deal their
// work to the SMs as these are free. (Policy full, which has the GPU to itself, does without. Since
// claims cost nothing, a layer's products alone are faster with them, 108 instead of 111 us on an
// H200; its steps have not been measured so.) Not while a graph is captured; recordings keep what
// they have.
void ShareGpu(Stream& stream);

// Heads of width cols / groups are normed one by one (ops/dense/norm.h). x f32; y f32 (may be x) or
// bf16.
void RmsNorm(Stream& stream, const MatrixView& x, const float* weight, float epsilon,
             int64_t groups, const MatrixView& y);
void RmsNormTwice(Stream& stream, const MatrixView& x, const float* first, const float* second,
                  float epsilon, const MatrixView& y);
void LayerNorm(Stream& stream, const MatrixView& x, const float* weight, const float* bias,
               float epsilon, const MatrixView& y);

// ops/dense/rope.h: once a step, then in place for every x. positions device, [T]; inv_freq device,
// [rotations.cols / 2]. f32.
void RopeRotations(Stream& stream, const int32_t* positions, const float* inv_freq,
                   float attention_factor, const MatrixView& rotations);
void Rope(Stream& stream, const MatrixView& x, const MatrixView& rotations, int64_t heads);
// One launch for every two parts of head_dim up to 256.
void RotateHeads(Stream& stream, std::span<const ProjectedHeads> parts, float norm_eps,
                 const MatrixView& rotations);

// y = silu(gate) * up, all in one dtype (bf16 or f32) or y alone in bf16; y may be gate where it
// has its dtype; arithmetic in f32. Relu: bf16 or f32.
void SiluMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y);
void Relu(Stream& stream, const MatrixView& x);

// f32 <-> bf16, [T, n].
void Convert(Stream& stream, const MatrixView& x, const MatrixView& y);

// ids[i] = argmax of logits row i (f32; the lowest id of equals); finite[i] = 0 where a logit of
// the row is not finite. Device memory.
void ArgMax(Stream& stream, const MatrixView& logits, int32_t* ids, int32_t* finite);

}  // namespace litecache::ops::cuda
