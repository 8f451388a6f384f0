#include "device/cuda/check.h"
#include "ops/common/vectors.cuh"
#include "ops/linear/gemm_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void AddBiasKernel(const float* bias, T* y, int64_t stride, int64_t cols) {
  T* row = y + blockIdx.x * stride;
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols;
       c += int64_t{gridDim.y} * kThreads) {
    row[c] = static_cast<T>(static_cast<float>(row[c]) + bias[c]);
  }
}

}  // namespace

void AddBias(CudaStream& stream, const float* bias, const MatrixView& y) {
  const int64_t pieces = (y.cols + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(y.rows), static_cast<unsigned>(pieces < 64 ? pieces : 64));
  if (y.dtype == DType::kBF16) {
    AddBiasKernel<<<grid, kThreads, 0, stream.handle()>>>(bias, y.Row<__nv_bfloat16>(0), y.stride,
                                                          y.cols);
  } else {
    AddBiasKernel<<<grid, kThreads, 0, stream.handle()>>>(bias, y.Row<float>(0), y.stride, y.cols);
  }
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
