// Products of many rows with experts' packed blocks: some experts' weights at a time become bf16 in
// memory, or, of experts larger than that memory, some rows of one's.
#include <algorithm>

#include "base/error.h"
#include "ops/experts/grouped_gemm_cuda.h"
#include "ops/experts/quantized_experts_cuda.h"
#include "ops/experts/unpack_experts_cuda.h"

namespace litecache::ops::cuda {
namespace {

// The larger, the less of the time SMs wait for the last tiles of a product.
constexpr uint64_t kMostBytes = uint64_t{256} << 20;
// Of slices of an expert: a multiple of the outputs that the GEMM's tiles have.
constexpr int64_t kRowStep = 128;

uint64_t RowBytes(const MatrixView& type) {
  return static_cast<uint64_t>(type.cols) * sizeof(uint16_t);
}

// Bytes for one of `matrices` matrices of some or all experts, or of some of its rows.
uint64_t BytesOf(const ExpertMatrices& weights, uint64_t matrices) {
  const MatrixView& type = weights.type;
  const uint64_t all = static_cast<uint64_t>(type.rows * weights.count) * RowBytes(type);
  return std::max(std::min(all, kMostBytes / matrices), RowBytes(type) * kRowStep);
}

// Rows [first, first + rows) of the experts [begin, end).
struct Slice {
  int64_t begin, end, first, rows;

  uint64_t Bytes(const MatrixView& type) const {
    return static_cast<uint64_t>((end - begin) * rows) * RowBytes(type);
  }
  GroupedWeights At(void* memory, const ExpertMatrices& weights) const {
    const MatrixView& type = weights.type;
    return {.base = memory,
            .expert_stride = rows * type.cols,
            .stride = type.cols,
            .begin = static_cast<int32_t>(begin),
            .end = static_cast<int32_t>(end),
            .biases = ExpertBiases::Of(weights, first)};
  }
};

// Calls f(slice) for slices of a matrix of every expert that take at most `bytes`. They are equally
// large, because a small last one would leave SMs idle.
template <typename F>
void ForEachSlice(const ExpertMatrices& weights, uint64_t bytes, const F& f) {
  const MatrixView& type = weights.type;
  if (type.rows == 0 || type.cols == 0) return;
  const auto rows = static_cast<int64_t>(bytes / RowBytes(type));
  const auto even = [](int64_t all, int64_t most) {
    const int64_t slices = (all + most - 1) / most;
    return (all + slices - 1) / slices;
  };
  if (rows >= type.rows) {
    const int64_t size = even(weights.count, rows / type.rows);
    for (int64_t begin = 0; begin < weights.count; begin += size) {
      f(Slice{begin, std::min(begin + size, weights.count), 0, type.rows});
    }
    return;
  }
  const int64_t steps = (type.rows + kRowStep - 1) / kRowStep;
  const int64_t size = even(steps, rows / kRowStep) * kRowStep;
  for (int64_t expert = 0; expert < weights.count; ++expert) {
    for (int64_t first = 0; first < type.rows; first += size) {
      f(Slice{expert, expert + 1, first, std::min(size, type.rows - first)});
    }
  }
}

void Unpack(CudaStream& stream, const ExpertMatrices& weights, const Slice& slice, void* memory) {
  UnpackExperts(stream, weights, slice.begin, slice.end, slice.first, slice.rows, memory);
}

}  // namespace

uint64_t UnpackedExpertsBytes(const ExpertLayer& layer) {
  return std::max(2 * BytesOf(layer.gate, 2), BytesOf(layer.down, 1));
}

void UnpackedExpertsGated(CudaStream& stream, const MatrixView& x, int64_t active,
                          const ExpertLists& lists, int64_t tile_rows, const ExpertMatrices& gate,
                          const ExpertMatrices& up, const GateFunction& function, void* memory,
                          const MatrixView& h) {
  LC_CHECK(gate.count == up.count && gate.type.rows == up.type.rows &&
           gate.type.cols == up.type.cols && h.cols == gate.type.rows);
  ForEachSlice(gate, BytesOf(gate, 2), [&](const Slice& slice) {
    void* const ups = static_cast<uint8_t*>(memory) + slice.Bytes(gate.type);
    Unpack(stream, gate, slice, memory);
    Unpack(stream, up, slice, ups);
    GroupedGatedGemm(stream, x, active, lists, tile_rows, slice.At(memory, gate), slice.At(ups, up),
                     function, h.Columns(slice.first, slice.rows));
  });
}

void UnpackedExpertsDown(CudaStream& stream, const MatrixView& h, const ExpertLists& lists,
                         int64_t tile_rows, const ExpertMatrices& down, void* memory,
                         const MatrixView& y) {
  LC_CHECK(y.cols == down.type.rows);
  ForEachSlice(down, BytesOf(down, 1), [&](const Slice& slice) {
    Unpack(stream, down, slice, memory);
    GroupedGemm(stream, h, lists, tile_rows, slice.At(memory, down),
                y.Columns(slice.first, slice.rows));
  });
}

}  // namespace litecache::ops::cuda
