#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/soft_cap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/dense/soft_cap_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <int kWidth>
__global__ void SoftCapKernel(SoftCapOf cap, float* x, int64_t stride, int64_t cols) {
  LetNextKernelStart();
  WaitForKernelBefore();
  float* row = x + int64_t{blockIdx.x} * stride;
  for (int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth; c < cols;
       c += int64_t{gridDim.y} * kThreads * kWidth) {
    const Vector<float, kWidth> from = Load<kWidth>(static_cast<const float*>(row) + c);
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = cap(from.at[i]);
    Store<kWidth>(row + c, values);
  }
}

}  // namespace

void SoftCap(Stream& stream, float cap, const MatrixView& x) {
  if (x.rows == 0 || x.cols == 0) return;
  const auto launch = [&]<int kWidth>() {
    const int64_t pieces = (x.cols + kThreads * kWidth - 1) / (kThreads * kWidth);
    const dim3 grid(static_cast<unsigned>(x.rows),
                    static_cast<unsigned>(std::min<int64_t>(pieces, 64)));
    LaunchOverlapping(AsCuda(stream), SoftCapKernel<kWidth>, grid, kThreads, 0, SoftCapOf(cap),
                      x.Row<float>(0), x.stride, x.cols);
  };
  Aligned(x, 4) ? launch.template operator()<4>() : launch.template operator()<1>();
}

}  // namespace litecache::ops::cuda
