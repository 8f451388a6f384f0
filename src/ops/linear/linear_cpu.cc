#include "ops/linear/linear_cpu.h"

#include <algorithm>

#include "ops/linear/gemm_cpu.h"
#include "ops/linear/gemm_onednn_cpu.h"
#include "ops/linear/gemv_cpu.h"
#include "ops/linear/quantized/linear_cpu.h"

namespace litecache::ops::cpu {

namespace {

bool IsQuantized(const LinearPart& part) {
  return part.weight.dtype == DType::kBlocks && HasQuantizedKernels();
}

void PlainLinear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
                 Epilogue epilogue) {
  const DType dtype = parts.front().weight.dtype;
  const bool alike = std::all_of(parts.begin(), parts.end(), [&](const LinearPart& part) {
    return part.weight.dtype == dtype;
  });
  if (alike && dtype != DType::kBlocks && x.rows <= MaxGemvTokens(dtype)) {
    Gemv(pool, x, parts, epilogue);
    return;
  }
  for (const LinearPart& part : parts) {
    const auto& [weight, bias, y] = part;
    if (weight.dtype != DType::kBlocks && x.rows <= MaxGemvTokens(weight.dtype)) {
      Gemv(pool, x, {&part, 1}, epilogue);
    } else if (OneDnnIsFaster(x, weight)) {
      GemmOneDnn(pool, x, weight, bias, y, epilogue);
    } else {
      Gemm(pool, x, weight, bias, y, epilogue);
    }
  }
}

}  // namespace

void Linear(ThreadPool& pool, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue) {
  // Runs of parts that are quantized, and of others: a model's are all alike, or few.
  for (size_t begin = 0; begin < parts.size();) {
    const bool quantized = IsQuantized(parts[begin]);
    size_t end = begin + 1;
    while (end < parts.size() && IsQuantized(parts[end]) == quantized) ++end;
    const auto run = parts.subspan(begin, end - begin);
    if (quantized) {
      QuantizedLinear(pool, x, run, epilogue);
    } else {
      PlainLinear(pool, x, run, epilogue);
    }
    begin = end;
  }
}

int64_t BatchInvariantRows(DType weight) {
  return weight == DType::kBlocks ? MaxQuantizedGemvTokens() : MaxGemvTokens(weight);
}

uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads) {
  return GemvScratchBytes(depth) + GemmScratchBytes(rows, depth, threads) +
         OneDnnScratchBytes(rows, depth) + QuantizedScratchBytes(rows, depth, threads);
}

}  // namespace litecache::ops::cpu
