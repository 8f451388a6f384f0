#include "ops/linear.h"

#include "ops/cpu/ops.h"

namespace litecache::ops {

void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue) {
  LC_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32);
  LC_CHECK(weight.dtype == DType::kF32 || weight.dtype == DType::kF16 ||
           weight.dtype == DType::kBF16);
  LC_CHECK(x.rows == y.rows && x.cols == weight.cols && y.cols == weight.rows,
           "x [{}, {}], weight [{}, {}], y [{}, {}]", x.rows, x.cols, weight.rows, weight.cols,
           y.rows, y.cols);
  LC_CHECK(weight.cols >= 1);
  LC_CHECK(x.stride >= x.cols && weight.stride >= weight.cols && y.stride >= y.cols);
  if (y.rows == 0 || y.cols == 0) return;
  cpu::Linear(AsCpu(stream).pool(), x, weight, bias, y, epilogue);
}

}  // namespace litecache::ops
