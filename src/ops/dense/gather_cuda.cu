#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/dense/gather_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void GatherKernel(const T* x, int64_t x_stride, const int32_t* rows, T* y,
                             int64_t y_stride, int64_t cols) {
  const T* from = x + rows[blockIdx.x] * x_stride;
  T* to = y + blockIdx.x * y_stride;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) to[c] = from[c];
}

}  // namespace

void GatherRows(Stream& stream, const MatrixView& x, const int32_t* rows, const MatrixView& y) {
  const auto launch = [&](auto* from, auto* to) {
    GatherKernel<<<static_cast<unsigned>(y.rows), kThreads, 0, AsCuda(stream).handle()>>>(
        from, x.stride, rows, to, y.stride, y.cols);
  };
  if (SizeOf(x.dtype) == 4) {
    launch(x.Row<const uint32_t>(0), y.Row<uint32_t>(0));
  } else {
    launch(x.Row<const uint16_t>(0), y.Row<uint16_t>(0));
  }
  LC_CUDA_LAUNCHED();
}

void CopyRows(Stream& stream, const MatrixView& x, const MatrixView& y) {
  LC_CUDA(cudaMemcpy2DAsync(
      y.data, static_cast<size_t>(y.RowBytes()), x.data, static_cast<size_t>(x.RowBytes()),
      static_cast<size_t>(x.cols) * SizeOf(x.dtype), static_cast<size_t>(x.rows),
      cudaMemcpyDeviceToDevice, AsCuda(stream).handle()));
}

}  // namespace litecache::ops::cuda
