#include "ops/dense/scale.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/common/row_grain.h"
#include "ops/dense/scale_cuda.h"

namespace litecache::ops {

void Scale(Stream& stream, float factor, const MatrixView& x) {
  LC_CHECK(x.dtype == DType::kF32);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Scale(stream, factor, x);
  }
  AsCpu(stream).pool().ParallelFor(x.rows, cpu::RowGrain(x.cols),
                                   [&](int64_t begin, int64_t end, int) {
                                     for (int64_t row = begin; row < end; ++row) {
                                       float* values = x.Row<float>(row);
                                       for (int64_t i = 0; i < x.cols; ++i)
                                         values[i] = factor == 0 ? 0 : factor * values[i];
                                     }
                                   });
}

void ScaleBy(Stream& stream, const float* factor, const MatrixView& x) {
  LC_CHECK(x.dtype == DType::kF32);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::ScaleBy(stream, factor, x);
  }
  Scale(stream, *factor, x);
}

void AddScaled(Stream& stream, float factor, const MatrixView& x, const MatrixView& y) {
  LC_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32);
  LC_CHECK(x.rows == y.rows && x.cols == y.cols, "x [{}, {}], y [{}, {}]", x.rows, x.cols, y.rows,
           y.cols);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::AddScaled(stream, factor, x, y);
  }
  AsCpu(stream).pool().ParallelFor(y.rows, cpu::RowGrain(y.cols),
                                   [&](int64_t begin, int64_t end, int) {
                                     for (int64_t row = begin; row < end; ++row) {
                                       const float* from = x.Row<float>(row);
                                       float* to = y.Row<float>(row);
                                       for (int64_t i = 0; i < y.cols; ++i)
                                         to[i] += factor * from[i];
                                     }
                                   });
}

}  // namespace litecache::ops
