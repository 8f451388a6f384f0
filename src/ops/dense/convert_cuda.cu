#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/dense/convert_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostRows = 65535;  // of a grid in y; further rows are looped over

template <typename From, typename To>
__global__ void ConvertKernel(const From* x, int64_t x_stride, To* y, int64_t y_stride,
                              int64_t rows, int64_t cols) {
  LetNextKernelStart();
  WaitForKernelBefore();
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    for (int64_t c = blockIdx.x * kThreads + threadIdx.x; c < cols;
         c += int64_t{gridDim.x} * kThreads) {
      y[row * y_stride + c] = static_cast<To>(static_cast<float>(x[row * x_stride + c]));
    }
  }
}

}  // namespace

void Convert(Stream& stream, const MatrixView& x, const MatrixView& y) {
  LC_CHECK(x.rows == y.rows && x.cols == y.cols);
  if (x.rows == 0 || x.cols == 0) return;
  const auto blocks = static_cast<unsigned>((x.cols + kThreads - 1) / kThreads);
  const dim3 grid(std::min(blocks, 64u), static_cast<unsigned>(std::min(x.rows, kMostRows)));
  const auto launch = [&](auto* from, auto* to) {
    LaunchOverlapping(AsCuda(stream),
                      ConvertKernel<std::remove_const_t<std::remove_pointer_t<decltype(from)>>,
                                    std::remove_pointer_t<decltype(to)>>,
                      grid, kThreads, 0, from, x.stride, to, y.stride, x.rows, x.cols);
  };
  if (x.dtype == DType::kF32 && y.dtype == DType::kBF16) {
    launch(x.Row<const float>(0), y.Row<__nv_bfloat16>(0));
  } else if (x.dtype == DType::kBF16 && y.dtype == DType::kF32) {
    launch(x.Row<const __nv_bfloat16>(0), y.Row<float>(0));
  } else if (x.dtype == DType::kF32 && y.dtype == DType::kF16) {
    launch(x.Row<const float>(0), y.Row<__half>(0));
  } else if (x.dtype == DType::kF16 && y.dtype == DType::kF32) {
    launch(x.Row<const __half>(0), y.Row<float>(0));
  } else {
    LC_CHECK(false, "f32 to bf16 or f16, or back");
  }
}

}  // namespace litecache::ops::cuda
