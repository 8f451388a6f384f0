#include <algorithm>

#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/expert_biases_cuda.h"
#include "ops/experts/plain_experts_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 8;

struct PlainArguments {
  const void* x;
  int64_t x_stride;
  const int32_t* experts;
  const float* weights;
  int32_t active;
  const void* const* first;
  const void* const* second;  // up, if first is gate
  int64_t first_stride, second_stride;
  ExpertBiases biases[2];  // of both
  int64_t outputs, depth;
  GateFunction function;
  void* y;
  int64_t y_stride;
};

// The dot product of two rows; every lane of a warp gets the same bits.
template <typename T>
__device__ inline float Dot(const T* a, const T* b, int64_t depth) {
  float sum = 0;
  for (int64_t k = threadIdx.x % 32; k < depth; k += 32) {
    sum = fmaf(static_cast<float>(a[k]), static_cast<float>(b[k]), sum);
  }
  return LaneSum(sum);
}

template <typename T>
__device__ inline const T* RowOf(const void* const* matrices, int32_t expert, int64_t row,
                                 int64_t stride) {
  return static_cast<const T*>(matrices[expert]) + row * stride;
}

// Calls f(output) for all outputs, a warp each, and whether this lane writes it.
template <typename F>
__device__ inline void ForEachOutput(int64_t outputs, const F& f) {
  for (int64_t output = int64_t{blockIdx.y} * kWarps + threadIdx.x / 32; output < outputs;
       output += int64_t{gridDim.y} * kWarps) {
    f(output, threadIdx.x % 32 == 0);
  }
}

// Pairs are in the grid's x dimension, which may have 2^31 blocks.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    PlainGatedKernel(const __grid_constant__ PlainArguments a) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const int64_t pair = blockIdx.x;
  const int32_t expert = a.experts[pair];
  if (expert == Routing::kElsewhere) return;
  const T* const x = static_cast<const T*>(a.x) + pair / a.active * a.x_stride;
  ForEachOutput(a.outputs, [&](int64_t output, bool writes) {
    const float gate = Dot(x, RowOf<T>(a.first, expert, output, a.first_stride), a.depth);
    const float up = Dot(x, RowOf<T>(a.second, expert, output, a.second_stride), a.depth);
    if (!writes) return;
    static_cast<T*>(a.y)[pair * a.y_stride + output] = static_cast<T>(
        a.function(gate + a.biases[0].At(expert, output), up + a.biases[1].At(expert, output)));
  });
}

// Rows are in the grid's x dimension.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    PlainDownKernel(const __grid_constant__ PlainArguments a) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const int64_t row = blockIdx.x;
  ForEachOutput(a.outputs, [&](int64_t output, bool writes) {
    float sum = 0;
    for (int64_t pair = row * a.active; pair < (row + 1) * a.active; ++pair) {
      const int32_t expert = a.experts[pair];
      if (expert == Routing::kElsewhere) break;
      const T* const x = static_cast<const T*>(a.x) + pair * a.x_stride;
      const T* const weights = RowOf<T>(a.first, expert, output, a.first_stride);
      const float product = Dot(x, weights, a.depth) + a.biases[0].At(expert, output);
      sum = fmaf(a.weights[pair], product, sum);
    }
    if (writes) static_cast<float*>(a.y)[row * a.y_stride + output] += sum;
  });
}

PlainArguments MakeArguments(const MatrixView& x, const Routing& routing,
                             const ExpertMatrices& matrices, const MatrixView& y) {
  LC_CHECK(x.dtype == matrices.type.dtype && x.cols == matrices.type.cols &&
           y.cols == matrices.type.rows && routing.rows * routing.active <= INT32_MAX);
  LC_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "{}", Name(x.dtype));
  return {.x = x.data,
          .x_stride = x.stride,
          .experts = routing.experts,
          .weights = routing.weights,
          .active = static_cast<int32_t>(routing.active),
          .first = matrices.data,
          .first_stride = matrices.type.stride,
          .biases = {ExpertBiases::Of(matrices)},
          .outputs = y.cols,
          .depth = x.cols,
          .y = y.data,
          .y_stride = y.stride};
}

dim3 GridOf(const MatrixView& y) {
  return {static_cast<unsigned>(y.rows),
          static_cast<unsigned>(std::min<int64_t>((y.cols + kWarps - 1) / kWarps, 1024))};
}

}  // namespace

void PlainGated(CudaStream& stream, const MatrixView& x, const Routing& routing,
                const ExpertMatrices& gate, const ExpertMatrices& up, const GateFunction& function,
                const MatrixView& h) {
  PlainArguments a = MakeArguments(x, routing, gate, h);
  LC_CHECK(up.type.dtype == x.dtype && h.dtype == x.dtype);
  a.second = up.data;
  a.second_stride = up.type.stride;
  a.biases[1] = ExpertBiases::Of(up);
  a.function = function;
  if (h.rows == 0 || h.cols == 0) return;
  LaunchOverlapping(
      stream, x.dtype == DType::kF32 ? PlainGatedKernel<float> : PlainGatedKernel<__nv_bfloat16>,
      GridOf(h), kWarps * 32, 0, a);
}

void PlainDown(CudaStream& stream, const MatrixView& h, const Routing& routing,
               const ExpertMatrices& down, const MatrixView& y) {
  const PlainArguments a = MakeArguments(h, routing, down, y);
  LC_CHECK(y.dtype == DType::kF32);
  if (y.rows == 0 || y.cols == 0) return;
  LaunchOverlapping(
      stream, h.dtype == DType::kF32 ? PlainDownKernel<float> : PlainDownKernel<__nv_bfloat16>,
      GridOf(y), kWarps * 32, 0, a);
}

}  // namespace litecache::ops::cuda
