#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_onednn.h"
#include "ops/cpu/gemv.h"
#include "ops/cpu/ops.h"

namespace litecache::ops::cpu {

void Linear(ThreadPool& pool, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue) {
  if (x.rows <= kMaxGemvTokens) {
    Gemv(pool, x, weight, bias, y, epilogue);
  } else if (OneDnnIsFaster(x, weight)) {
    GemmOneDnn(pool, x, weight, bias, y, epilogue);
  } else {
    Gemm(pool, x, weight, bias, y, epilogue);
  }
}

}  // namespace litecache::ops::cpu
