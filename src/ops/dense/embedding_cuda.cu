#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/dense/embedding_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int kWidth>
__global__ void EmbeddingKernel(const T* table, int64_t table_stride, int64_t table_rows,
                                const int32_t* ids, float* y, int64_t y_stride, int64_t cols,
                                bool add, int32_t first, float unknown) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t t = blockIdx.x;
  const int32_t id = ids[t] - first;
  const bool known = id >= 0 && id < table_rows;
  const T* row = table + (known ? id : 0) * table_stride;
  for (int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth; c < cols;
       c += int64_t{gridDim.y} * kThreads * kWidth) {
    const Vector<T, kWidth> in = Load<kWidth>(row + c);
    float* out = y + t * y_stride + c;
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = known ? static_cast<float>(in.at[i]) : unknown;
      if (add) values[i] += out[i];
    }
    Store<kWidth>(out, values);
  }
}

}  // namespace

void Embedding(Stream& stream, const MatrixView& table, const int32_t* ids, const MatrixView& y,
               Epilogue epilogue, int64_t first) {
  LC_CHECK(y.dtype == DType::kF32 && table.cols == y.cols && table.rows >= 1);
  if (y.rows == 0 || y.cols == 0) return;
  if (table.dtype == DType::kBlocks) {
    return GatherBlocks(AsCuda(stream), table, ids, y, epilogue, first);
  }
  const auto launch = [&]<typename T, int kWidth>() {
    const int64_t pieces = (y.cols + kThreads * kWidth - 1) / (kThreads * kWidth);
    const dim3 grid(static_cast<unsigned>(y.rows),
                    static_cast<unsigned>(pieces < 64 ? pieces : 64));
    LaunchOverlapping(AsCuda(stream), EmbeddingKernel<T, kWidth>, grid, kThreads, 0,
                      table.Row<const T>(0), table.stride, table.rows, ids, y.Row<float>(0),
                      y.stride, y.cols, epilogue == Epilogue::kAdd, FirstRow(first),
                      OfUnknown(first));
  };
  const bool wide = Aligned(table, 4) && Aligned(y, 4);
  if (table.dtype == DType::kBF16) {
    wide ? launch.operator()<__nv_bfloat16, 4>() : launch.operator()<__nv_bfloat16, 1>();
  } else {
    LC_CHECK(table.dtype == DType::kF32, "a table of bf16, f32 or blocks");
    wide ? launch.operator()<float, 4>() : launch.operator()<float, 1>();
  }
}

}  // namespace litecache::ops::cuda
