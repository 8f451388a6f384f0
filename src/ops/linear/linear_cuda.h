// ops/linear/linear.h on a GPU; all pointers are device memory.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// x [T, in] in the weights' dtype, bf16 or f32, bf16 for packed blocks; y f32, or with bf16 weights
// also bf16 (kAdd: f32). bf16: sums in f32; up to 16 rows a bandwidth-bound GEMV, one launch for
// four parts (gemv_cuda.h), before sm_90 only for parts below 24 MiB; otherwise, and for f32,
// cuBLASLt (gemm_cuda.h). On a batch-invariant stream, up to 16 rows always run in the same of the
// GEMVs. Packed blocks (quantized/packed_blocks.h): x bf16 and y as with bf16 weights; sums in f32.
// Up to 8 rows a bandwidth-bound GEMV, whose weights are exact, one launch for four parts of one
// layout (quantized/gemv_cuda.h); on a batch-invariant stream, up to 64 rows, eight at a time. More
// have the weights rounded to bf16: up to 128 rows within a kernel, 64 rows and four parts of one
// layout at a time, where a row's bits depend on how many rows and which parts are multiplied
// together; beyond that and before sm_90 in memory, in slices that cuBLASLt multiplies.
void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue);

// y bf16, and every bias representable in bf16: rounded once (cuBLASLt's epilogue).
void RoundedLinear(Stream& stream, const MatrixView& x, std::span<const RoundedPart> parts);

// gate.y = function(gate, up), of the same dtype as up.y, which is scratch. For few rows: one
// launch, and only the result is rounded.
void GatedLinear(Stream& stream, const MatrixView& x, const LinearPart& gate, const LinearPart& up,
                 const GateFunction& function);

// Loads cuBLASLt (the machine's, at run time) and allocates its workspace. Throws DeviceError
// naming the library if it is missing. Call once per stream, before a graph is captured on it;
// otherwise the first product that needs it does so.
void PrepareLinear(Stream& stream);
// Allocates the memory in which packed blocks are unpacked for products of many rows
// (linear_scratch_cuda.h); otherwise the first such product does so. Not allowed while a graph is
// captured. Throws CapacityError.
void PrepareUnpacking(Stream& stream);

// Call if kernels of other streams will occupy SMs beside this stream's products of few rows: these
// then distribute their work to SMs as they become free. (Policy full, which uses the GPU alone,
// does without. With claims, a layer's products alone are faster, 108 instead of 111 us on an H200;
// whole steps of it have not been measured this way.) Not allowed while a graph is captured;
// recorded graphs keep their mode.
void ShareGpu(Stream& stream);
// Ends ShareGpu(): no other stream's kernels run beside this stream's operations from here on.
void UnshareGpu(Stream& stream);

}  // namespace litecache::ops::cuda
