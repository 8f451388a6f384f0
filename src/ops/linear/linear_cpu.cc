#include "ops/linear/linear_cpu.h"

#include <algorithm>

#include "ops/linear/gemm_cpu.h"
#include "ops/linear/gemm_onednn_cpu.h"
#include "ops/linear/gemv_cpu.h"

namespace litecache::ops::cpu {

void Linear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue) {
  const DType dtype = parts.front().weight.dtype;
  const bool alike = std::all_of(parts.begin(), parts.end(), [&](const LinearPart& part) {
    return part.weight.dtype == dtype;
  });
  if (alike && x.rows <= MaxGemvTokens(dtype)) {
    Gemv(pool, x, parts, epilogue);
    return;
  }
  for (const LinearPart& part : parts) {
    const auto& [weight, bias, y] = part;
    if (x.rows <= MaxGemvTokens(weight.dtype)) {
      Gemv(pool, x, {&part, 1}, epilogue);
    } else if (OneDnnIsFaster(x, weight)) {
      GemmOneDnn(pool, x, weight, bias, y, epilogue);
    } else {
      Gemm(pool, x, weight, bias, y, epilogue);
    }
  }
}

uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads) {
  return GemvScratchBytes(depth) + GemmScratchBytes(rows, depth, threads) +
         OneDnnScratchBytes(rows, depth);
}

}  // namespace litecache::ops::cpu
