#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/combine_experts_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLoads = 4;  // in flight per thread

// Rows are in the grid's x dimension, which may have 2^31 blocks.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    CombineKernel(const float* weights, int32_t active, const T* output, int64_t stride, float* y,
                  int64_t y_stride, int64_t cols) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t row = blockIdx.x;
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (column >= cols) return;
  const T* const from = output + row * active * stride + column;
  const float* const own = weights + row * active;
  float sum[kWidth] = {};
  for (int32_t begin = 0; begin < active; begin += kLoads) {
    Vector<T, kWidth> values[kLoads];
    float factors[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (begin + i >= active) continue;
      values[i] = Load<kWidth>(from + (begin + i) * stride);
      factors[i] = own[begin + i];
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      // Experts that are elsewhere have a weight of 0 and no output.
      if (begin + i >= active || factors[i] == 0) continue;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        sum[c] = fmaf(factors[i], static_cast<float>(values[i].at[c]), sum[c]);
      }
    }
  }
  float* const to = y + row * y_stride + column;
  const Vector<float, kWidth> before = Load<kWidth>(to);
#pragma unroll
  for (int c = 0; c < kWidth; ++c) sum[c] += before.at[c];
  Store<kWidth>(to, sum);
}

template <typename T, int kWidth>
void Launch(CudaStream& stream, const Routing& routing, const MatrixView& output,
            const MatrixView& y) {
  const int64_t pieces = (y.cols + kThreads * kWidth - 1) / (kThreads * kWidth);
  LC_CHECK(pieces <= UINT16_MAX);
  LaunchOverlapping(stream, CombineKernel<T, kWidth>,
                    dim3(static_cast<unsigned>(y.rows), static_cast<unsigned>(pieces)), kThreads, 0,
                    routing.weights, static_cast<int32_t>(routing.active), output.Row<const T>(0),
                    output.stride, y.Row<float>(0), y.stride, y.cols);
}

template <typename T>
void Launch(CudaStream& stream, const Routing& routing, const MatrixView& output,
            const MatrixView& y) {
  const bool wide = Aligned(output, 4) && Aligned(y, 4);
  wide ? Launch<T, 4>(stream, routing, output, y) : Launch<T, 1>(stream, routing, output, y);
}

}  // namespace

void CombineExperts(CudaStream& stream, const Routing& routing, const MatrixView& output,
                    const MatrixView& y) {
  LC_CHECK(y.dtype == DType::kF32 && output.rows == y.rows * routing.active &&
           output.cols == y.cols);
  LC_CHECK(output.dtype == DType::kBF16 || output.dtype == DType::kF32);
  if (y.rows == 0 || y.cols == 0) return;
  output.dtype == DType::kBF16 ? Launch<__nv_bfloat16>(stream, routing, output, y)
                               : Launch<float>(stream, routing, output, y);
}

}  // namespace litecache::ops::cuda
