// Products of many rows by cuBLASLt.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "ops/dense/linear.h"

namespace litecache::ops::cuda {

// A stream's handle, workspace and chosen algorithms; lives with the stream, used by one thread at
// a time.
class Gemm {
 public:
  // Takes the workspace: not while a graph is captured. Throws DeviceError, CapacityError.
  Gemm();
  ~Gemm();

  // Arguments of Linear, checked. A shape's first call chooses its algorithm (some ten
  // microseconds of the host).
  void Run(CudaStream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
           const MatrixView& y, Epilogue epilogue);

 private:
  // rows, out, in; strides of x, weight and y; dtypes of x and y; alignments of x, weight and y;
  // add, bias.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, DType, DType,
                         uint32_t, uint32_t, uint32_t, bool, bool>;
  struct Plan;
  struct State;

  // Null where cuBLASLt has no algorithm for it.
  Plan* PlanFor(const Key& key);

  std::unique_ptr<State> state_;
};

// y += bias in every row. y f32 or bf16.
void AddBias(CudaStream& stream, const float* bias, const MatrixView& y);

}  // namespace litecache::ops::cuda
