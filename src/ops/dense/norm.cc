#include "ops/dense/norm.h"

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/dense/norm_cpu.h"
#include "ops/dense/norm_cuda.h"

namespace litecache::ops {

void RmsNorm(Stream& stream, const MatrixView& x, const float* weight, float eps, int64_t groups,
             const MatrixView& y) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::RmsNorm(stream, x, weight, eps, groups, y);
  }
  LC_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32);
  LC_CHECK(x.rows == y.rows && x.cols == y.cols && groups >= 1 && x.cols % groups == 0,
           "x [{}, {}], y [{}, {}], {} groups", x.rows, x.cols, y.rows, y.cols, groups);
  if (x.rows == 0 || x.cols == 0) return;
  cpu::RmsNorm(AsCpu(stream).pool(), x, weight, eps, groups, y);
}

void RmsNormTwice(Stream& stream, const MatrixView& x, const float* first, const float* second,
                  float eps, const MatrixView& y) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::RmsNormTwice(stream, x, first, second, eps, y);
  }
  LC_CHECK(y.rows == 2 * x.rows);
  RmsNorm(stream, x, first, eps, 1, y.Rows(0, x.rows));
  RmsNorm(stream, x, second, eps, 1, y.Rows(x.rows, x.rows));
}

void LayerNorm(Stream& stream, const MatrixView& x, const float* weight, const float* bias,
               float eps, const MatrixView& y) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::LayerNorm(stream, x, weight, bias, eps, y);
  }
  LC_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32);
  LC_CHECK(x.rows == y.rows && x.cols == y.cols, "x [{}, {}], y [{}, {}]", x.rows, x.cols, y.rows,
           y.cols);
  if (x.rows == 0 || x.cols == 0) return;
  cpu::LayerNorm(AsCpu(stream).pool(), x, weight, bias, eps, y);
}

}  // namespace litecache::ops
