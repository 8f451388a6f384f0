// Products of a few rows: bound by reading the weights.
#pragma once

#include <span>

#include "device/cuda/cuda_device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// Rows that one read of the weights serves: a tensor core multiplies 16 at once.
inline constexpr int64_t kMaxGemvRows = 16;
// Most products in one launch.
inline constexpr int kMaxGemvParts = 4;

// Arguments as for Linear; bf16 x and weights, 1 to kMaxGemvRows rows, up to kMaxGemvParts parts
// with any number of outputs each. Every sum has a fixed order that depends on the parts' sizes
// only: a row's results are the same bits whatever the other rows.
void Gemv(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
          Epilogue epilogue);

// Counters by which the blocks of a product claim its tiles. Launches use pairs of counters in
// turn, because a kernel may start while earlier ones still run. Device memory, zero between
// launches.
class TileClaims {
 public:
  // Not allowed while a graph is captured. Throws CapacityError.
  explicit TileClaims(CudaStream& stream);
  uint32_t* Next();

 private:
  static constexpr int kCount = 64;
  static constexpr size_t kBytes = kCount * 2 * sizeof(uint32_t);
  Buffer memory_;
  int next_ = 0;
};

// The same on sm_90, near the memory bandwidth at any size, and overlapping the kernel before it
// (overlap.cuh). RingGemvServes: whether GPU, alignment of x and weights (16 bytes) and the size of
// x, which must fit in shared memory, allow it. claims: null if every block has an even share.
bool RingGemvServes(const MatrixView& x, std::span<const LinearPart> parts);
void RingGemv(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
              Epilogue epilogue, TileClaims* claims = nullptr);
// gate.y = function(x gate^T, x up^T), if RingGemvServes both; up.y is unchanged.
void RingGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                   const LinearPart& up, const GateFunction& function,
                   TileClaims* claims = nullptr);

}  // namespace litecache::ops::cuda
