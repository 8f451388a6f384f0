#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/dense/scale_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

// y = factor * x (0: zeros, whatever x is), or with kAdd y += factor * x. y may be x. loaded: if
// not null, the factor.
template <bool kAdd, int kWidth>
__global__ void ScaleKernel(float factor, const float* loaded, const float* x, int64_t x_stride,
                            float* y, int64_t y_stride, int64_t cols) {
  LetNextKernelStart();
  if (loaded != nullptr) factor = *loaded;
  WaitForKernelBefore();
  const int64_t r = blockIdx.x;
  for (int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth; c < cols;
       c += int64_t{gridDim.y} * kThreads * kWidth) {
    const Vector<float, kWidth> from = Load<kWidth>(x + r * x_stride + c);
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = factor == 0 ? 0 : factor * from.at[i];
    if constexpr (kAdd) {
      const Vector<float, kWidth> to = Load<kWidth>(y + r * y_stride + c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = fmaf(factor, from.at[i], to.at[i]);
    }
    Store<kWidth>(y + r * y_stride + c, values);
  }
}

template <bool kAdd>
void Launch(Stream& stream, float factor, const float* loaded, const MatrixView& x,
            const MatrixView& y) {
  if (y.rows == 0 || y.cols == 0) return;
  const auto launch = [&]<int kWidth>() {
    const int64_t pieces = (y.cols + kThreads * kWidth - 1) / (kThreads * kWidth);
    const dim3 grid(static_cast<unsigned>(y.rows),
                    static_cast<unsigned>(pieces < 64 ? pieces : 64));
    LaunchOverlapping(AsCuda(stream), ScaleKernel<kAdd, kWidth>, grid, kThreads, 0, factor, loaded,
                      x.Row<const float>(0), x.stride, y.Row<float>(0), y.stride, y.cols);
  };
  Aligned(x, 4) && Aligned(y, 4) ? launch.template operator()<4>()
                                 : launch.template operator()<1>();
}

}  // namespace

void Scale(Stream& stream, float factor, const MatrixView& x) {
  Launch<false>(stream, factor, nullptr, x, x);
}

void ScaleBy(Stream& stream, const float* factor, const MatrixView& x) {
  Launch<false>(stream, 0, factor, x, x);
}

void AddScaled(Stream& stream, float factor, const MatrixView& x, const MatrixView& y) {
  Launch<true>(stream, factor, nullptr, x, y);
}

}  // namespace litecache::ops::cuda
