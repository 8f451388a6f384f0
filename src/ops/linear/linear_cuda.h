// Twin of ops/linear/linear.h on a GPU; all memory is the device's.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

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
// No other stream's kernels run beside what this stream is given from here on: its products have
// the GPU to themselves until the next ShareGpu().
void UnshareGpu(Stream& stream);

}  // namespace litecache::ops::cuda
