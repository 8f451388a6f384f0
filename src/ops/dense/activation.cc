#include "ops/dense/activation.h"

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/dense/activation_cpu.h"
#include "ops/dense/activation_cuda.h"

namespace litecache::ops {
namespace {

// x = function(x), of the stream's backend. parameters: the function's, if it has some.
template <auto kOnCuda, auto kOnCpu, typename... Parameters>
void InPlace(Stream& stream, const MatrixView& x, const Parameters&... parameters) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return kOnCuda(stream, parameters..., x);
  }
  LC_CHECK(x.dtype == DType::kF32);
  if (x.rows == 0 || x.cols == 0) return;
  kOnCpu(AsCpu(stream).pool(), parameters..., x);
}

}  // namespace

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

void Relu(Stream& stream, const MatrixView& x) { InPlace<cuda::Relu, cpu::Relu>(stream, x); }
void ReluSquared(Stream& stream, const MatrixView& x) {
  InPlace<cuda::ReluSquared, cpu::ReluSquared>(stream, x);
}
void Gelu(Stream& stream, const MatrixView& x) { InPlace<cuda::Gelu, cpu::Gelu>(stream, x); }
void Xielu(Stream& stream, const XieluFunction& function, const MatrixView& x) {
  InPlace<cuda::Xielu, cpu::Xielu>(stream, x, function);
}

}  // namespace litecache::ops
