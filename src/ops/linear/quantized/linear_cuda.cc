#include "ops/linear/quantized/linear_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "device/cuda/allocated.h"
#include "device/cuda/check.h"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/linear_scratch_cuda.h"
#include "ops/linear/quantized/gemv_cuda.h"
#include "ops/linear/quantized/packed_blocks.h"
#include "ops/linear/quantized/unpack_blocks_cuda.h"

namespace litecache::ops::cuda {
namespace {

// Whether the kernel with exact weights serves.
bool GemvServes(const CudaStream& stream, const MatrixView& x) {
  if (!QuantizedGemvServes()) return false;
  if (stream.batch_invariant()) return x.rows <= kMostInvariantRows;
  return x.rows <= (QuantizedGemmServes(x) ? kMaxQuantizedGemvRows : kMostGemvRows);
}

// Calls f(first, count) for pieces of the rows.
template <typename F>
void ForEachPiece(int64_t rows, bool gemv, const F& f) {
  const int64_t most = gemv ? kMaxQuantizedGemvRows : kMaxQuantizedGemmRows;
  for (int64_t first = 0; first < rows; first += most) f(first, std::min(most, rows - first));
}

LinearPart RowsOf(LinearPart part, int64_t first, int64_t count) {
  part.y = part.y.Rows(first, count);
  return part;
}

}  // namespace

void UnpackedSlice::Reserve() {
  if (memory_.data() != nullptr) return;
  void* memory = nullptr;
  LC_CUDA(cudaMalloc(&memory, UnpackedSliceBytes()));
  memory_ = Buffer(memory, UnpackedSliceBytes(), [](void* data, size_t bytes) {
    cudaFree(data);
    CountGpuMemory(-static_cast<int64_t>(bytes));
  });
  CountGpuMemory(static_cast<int64_t>(UnpackedSliceBytes()));
}

void UnpackedSlice::ForEach(CudaStream& stream, const MatrixView& weight,
                            const std::function<void(int64_t, const MatrixView&)>& multiply) {
  Reserve();
  const auto row_bytes = static_cast<uint64_t>(weight.cols) * sizeof(uint16_t);
  const auto most =
      static_cast<int64_t>(UnpackedSliceBytes() / row_bytes) / kPackedRows * kPackedRows;
  LC_CHECK(most > 0, "{} columns", weight.cols);
  // Equally large slices: a small last one would leave SMs idle.
  const int64_t slices = (weight.rows + most - 1) / most;
  const int64_t even = (weight.rows + slices - 1) / slices;
  const int64_t size = (even + kPackedRows - 1) / kPackedRows * kPackedRows;
  for (int64_t first = 0; first < weight.rows; first += size) {
    const MatrixView rows = MatrixView::Of(memory_.data(), DType::kBF16,
                                           std::min(size, weight.rows - first), weight.cols);
    UnpackBlocks(stream, weight, first, rows);
    multiply(first, rows);
  }
}

bool PiecewiseServes(const CudaStream& stream, const MatrixView& x) {
  return GemvServes(stream, x) || (x.rows <= kMostPiecewiseRows && QuantizedGemmServes(x));
}

void PiecewiseLinear(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                     Epilogue epilogue) {
  const bool gemv = GemvServes(stream, x);
  while (!parts.empty()) {
    const auto some = parts.first(std::min<size_t>(parts.size(), kMaxGemvParts));
    ForEachPiece(x.rows, gemv, [&](int64_t first, int64_t count) {
      std::array<LinearPart, kMaxGemvParts> array;
      for (size_t i = 0; i < some.size(); ++i) array[i] = RowsOf(some[i], first, count);
      const auto pieces = std::span(array).first(some.size());
      const MatrixView rows = x.Rows(first, count);
      gemv ? QuantizedGemv(stream, rows, pieces, epilogue)
           : QuantizedGemm(stream, rows, pieces, epilogue);
    });
    parts = parts.subspan(some.size());
  }
}

void PiecewiseGatedLinear(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                          const LinearPart& up, const GateFunction& function) {
  const bool gemv = GemvServes(stream, x);
  ForEachPiece(x.rows, gemv, [&](int64_t first, int64_t count) {
    const LinearPart own_gate = RowsOf(gate, first, count), own_up = RowsOf(up, first, count);
    const MatrixView rows = x.Rows(first, count);
    gemv ? QuantizedGatedGemv(stream, rows, own_gate, own_up, function)
         : QuantizedGatedGemm(stream, rows, own_gate, own_up, function);
  });
}

void UnpackedLinear(CudaStream& stream, Gemm& library, UnpackedSlice& slice, const MatrixView& x,
                    const LinearPart& part, const uint16_t* rounded, Epilogue epilogue) {
  if (part.y.cols == 0) return;
  slice.ForEach(stream, part.weight, [&](int64_t first, const MatrixView& weight) {
    const GemmBias bias = {.f32 = part.bias != nullptr ? part.bias + first : nullptr,
                           .bf16 = rounded != nullptr ? rounded + first : nullptr};
    library.Run(stream, x, weight, bias, part.y.Columns(first, weight.rows), epilogue);
  });
}

}  // namespace litecache::ops::cuda
