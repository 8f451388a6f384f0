#include "ops/linear/linear.h"

#include "device/cpu/cpu_device.h"
#include "device/sections.h"
#include "ops/common/available_cuda.h"
#include "ops/dense/activation.h"
#include "ops/dense/activation_cpu.h"
#include "ops/dense/activation_cuda.h"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/linear_cpu.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/quantized/gemv_cuda.h"

namespace litecache::ops {

void Linear(Stream& stream, const MatrixView& x, std::span<const LinearPart> parts,
            Epilogue epilogue) {
  const SectionScope section(stream, Section::kProducts);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Linear(stream, x, parts, epilogue);
  }
  LC_CHECK(x.dtype == DType::kF32 && x.stride >= x.cols && x.cols >= 1);
  for (const auto& [weight, bias, y] : parts) {
    LC_CHECK(y.dtype == DType::kF32);
    if (weight.dtype == DType::kBlocks) {
      LC_CHECK(weight.format != nullptr && weight.format->quantized() &&
               weight.format->to_float != nullptr);
    } else {
      LC_CHECK(weight.dtype == DType::kF32 || weight.dtype == DType::kF16 ||
               weight.dtype == DType::kBF16);
    }
    LC_CHECK(x.rows == y.rows && x.cols == weight.cols && y.cols == weight.rows,
             "x [{}, {}], weight [{}, {}], y [{}, {}]", x.rows, x.cols, weight.rows, weight.cols,
             y.rows, y.cols);
    LC_CHECK(weight.stride >= weight.cols && y.stride >= y.cols);
  }
  if (x.rows == 0 || parts.empty()) return;
  cpu::Linear(AsCpu(stream).pool(), x, parts, epilogue);
}

void Linear(Stream& stream, const MatrixView& x, const MatrixView& weight, const float* bias,
            const MatrixView& y, Epilogue epilogue) {
  const LinearPart part{.weight = weight, .bias = bias, .y = y};
  Linear(stream, x, {&part, 1}, epilogue);
}

void RoundedLinear(Stream& stream, const MatrixView& x, std::span<const RoundedPart> parts) {
  if constexpr (cuda::kAvailable) {
    LC_CHECK(cuda::RunsHere(stream));
    const SectionScope section(stream, Section::kProducts);
    return cuda::RoundedLinear(stream, x, parts);
  }
  LC_CHECK(false, "rounded products are a GPU's");
}

void GatedLinear(Stream& stream, const MatrixView& x, const LinearPart& gate, const LinearPart& up,
                 const GateFunction& function) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) {
      const SectionScope section(stream, Section::kProducts);
      return cuda::GatedLinear(stream, x, gate, up, function);
    }
  }
  const LinearPart parts[] = {gate, up};
  Linear(stream, x, parts);
  GateMul(stream, gate.y, up.y, gate.y, function);
}

int64_t LinearBatchInvariantRows(DeviceType device, DType weight) {
  if (device == DeviceType::kCpu) return cpu::BatchInvariantRows(weight);
  if constexpr (cuda::kAvailable) {
    if (weight == DType::kBF16) return cuda::kMaxGemvRows;
    if (weight == DType::kBlocks && cuda::QuantizedGemvServes()) return cuda::kMaxQuantizedGemvRows;
  }
  return 0;
}

void PrepareQuantizedLinear(Stream& stream) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) cuda::PrepareUnpacking(stream);
  }
}

uint64_t LinearScratchBytes(int64_t rows, int64_t depth, int threads) {
  return cpu::LinearScratchBytes(rows, depth, threads);
}

}  // namespace litecache::ops
