#include "ops/dense/activation.h"

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/dense/activation_cpu.h"
#include "ops/dense/activation_cuda.h"

namespace litecache::ops {

void GateMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y,
             const GateFunction& function) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::GateMul(stream, gate, up, y, function);
  }
  LC_CHECK(gate.dtype == DType::kF32 && up.dtype == DType::kF32 && y.dtype == DType::kF32);
  LC_CHECK(
      gate.rows == up.rows && gate.rows == y.rows && gate.cols == up.cols && gate.cols == y.cols,
      "gate [{}, {}], up [{}, {}], y [{}, {}]", gate.rows, gate.cols, up.rows, up.cols, y.rows,
      y.cols);
  if (y.rows == 0 || y.cols == 0) return;
  cpu::GateMul(AsCpu(stream).pool(), gate, up, y, function);
}

void SigmoidMul(Stream& stream, const MatrixView& gate, const MatrixView& x) {
  LC_CHECK(
      gate.dtype == DType::kF32 && gate.rows == x.rows && (gate.cols == x.cols || gate.cols == 1),
      "gate [{}, {}], x [{}, {}]", gate.rows, gate.cols, x.rows, x.cols);
  if (x.rows == 0 || x.cols == 0) return;
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::SigmoidMul(stream, gate, x);
  }
  LC_CHECK(x.dtype == DType::kF32);
  cpu::SigmoidMul(AsCpu(stream).pool(), gate, x);
}

void Relu(Stream& stream, const MatrixView& x) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Relu(stream, x);
  }
  LC_CHECK(x.dtype == DType::kF32);
  if (x.rows == 0 || x.cols == 0) return;
  cpu::Relu(AsCpu(stream).pool(), x);
}

void ReluSquared(Stream& stream, const MatrixView& x) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::ReluSquared(stream, x);
  }
  LC_CHECK(x.dtype == DType::kF32);
  if (x.rows == 0 || x.cols == 0) return;
  cpu::ReluSquared(AsCpu(stream).pool(), x);
}

void Gelu(Stream& stream, const MatrixView& x) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Gelu(stream, x);
  }
  LC_CHECK(x.dtype == DType::kF32);
  if (x.rows == 0 || x.cols == 0) return;
  cpu::Gelu(AsCpu(stream).pool(), x);
}

void Xielu(Stream& stream, const XieluFunction& function, const MatrixView& x) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Xielu(stream, function, x);
  }
  LC_CHECK(x.dtype == DType::kF32);
  if (x.rows == 0 || x.cols == 0) return;
  cpu::Xielu(AsCpu(stream).pool(), function, x);
}

}  // namespace litecache::ops
