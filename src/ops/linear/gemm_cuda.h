// Products of many rows by cuBLASLt.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cuda {

// [out] f32 and, if the caller has them, the same values in bf16; null: none.
struct GemmBias {
  const float* f32 = nullptr;
  const uint16_t* bf16 = nullptr;
};

// A stream's handle, workspace and chosen algorithms. Owned by the stream; used by one thread at a
// time.
class Gemm {
 public:
  // Allocates the workspace; not allowed while a graph is captured. Throws DeviceError,
  // CapacityError.
  Gemm();
  ~Gemm();

  // Arguments as for Linear, already checked. A shape's first call chooses its algorithm (some ten
  // microseconds on the host). A bias is added before y is rounded if y is f32 or the bias is
  // available in bf16.
  void Run(CudaStream& stream, const MatrixView& x, const MatrixView& weight, const GemmBias& bias,
           const MatrixView& y, Epilogue epilogue);
  // Two products of one x, of one shape, with kStore, as one call: the first one's last tiles leave
  // no SM idle. Returns false, having done nothing, if the library has no algorithm or the second
  // one's matrices do not follow the first's.
  bool RunPair(CudaStream& stream, const MatrixView& x, const RoundedPart& first,
               const RoundedPart& second);

 private:
  // rows, out, in; strides of x, weight and y; dtypes of x and y; alignments of x, weight and y;
  // add, bias, pair.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, DType, DType,
                         uint32_t, uint32_t, uint32_t, bool, bool, bool>;
  struct Plan;
  struct State;

  // Null if cuBLASLt has no algorithm for it.
  Plan* PlanFor(const Key& key);

  std::unique_ptr<State> state_;
};

// y += bias in every row. y is f32 or bf16.
void AddBias(CudaStream& stream, const float* bias, const MatrixView& y);

}  // namespace litecache::ops::cuda
