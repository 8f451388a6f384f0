// Products with packed blocks (packed_blocks.h), of any number of rows.
#pragma once

#include <functional>
#include <span>

#include "device/cuda/cuda_device.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// Memory for a slice of weights in bf16, which a stream's products of many rows share.
class UnpackedSlice {
 public:
  // Allocates it, unless it is there; not allowed while a graph is captured. Throws CapacityError.
  void Reserve();
  // Calls multiply(first, weights) for slices of `weight` in bf16 that begin at row `first`.
  void ForEach(CudaStream& stream, const MatrixView& weight,
               const std::function<void(int64_t, const MatrixView&)>& multiply);

 private:
  Buffer memory_;
};

// The kernels of gemv_cuda.h serve up to this many rows, with one read of the weights for
// kMaxQuantizedGemmRows of them. Llama 3.1 8B's o, gate and up, and down with Q4_K on an H200: two
// such products take 33, 144 and 80 us, three 49, 216 and 119; writing the weights as bf16 and
// multiplying that takes 33, 199 and 108.
inline constexpr int64_t kMostPiecewiseRows = 128;
// Without the kernel for more rows, up to this many in pieces of kMaxQuantizedGemvRows; on a
// batch-invariant stream, up to kMostInvariantRows. By bytes: unpacking a 4-bit weight moves eight
// times as many as reading it.
inline constexpr int64_t kMostGemvRows = 32;
inline constexpr int64_t kMostInvariantRows = 64;
bool PiecewiseServes(const CudaStream& stream, const MatrixView& x);

// Parts of one packed layout; PiecewiseServes. Up to kMaxQuantizedGemvRows rows multiply exact
// weights, more multiply them rounded to bf16.
void PiecewiseLinear(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                     Epilogue epilogue);
void PiecewiseGatedLinear(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                          const LinearPart& up, const GateFunction& function);

// By cuBLASLt, with the weights rounded to bf16. rounded: as in RoundedPart, or null.
void UnpackedLinear(CudaStream& stream, Gemm& library, UnpackedSlice& slice, const MatrixView& x,
                    const LinearPart& part, const uint16_t* rounded, Epilogue epilogue);

}  // namespace litecache::ops::cuda
