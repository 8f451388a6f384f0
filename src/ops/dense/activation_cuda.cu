#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/dense/activation_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Rows are in the grid's x dimension, which may have 2^31 blocks.
dim3 GridOf(const MatrixView& m, int width) {
  const int64_t pieces = (m.cols + kThreads * width - 1) / (kThreads * width);
  return {static_cast<unsigned>(m.rows), static_cast<unsigned>(pieces < 64 ? pieces : 64)};
}

template <typename In, typename Out, int kWidth>
__global__ void GateMulKernel(const In* gate, int64_t gate_stride, const In* up, int64_t up_stride,
                              Out* y, int64_t y_stride, int64_t cols, GateFunction function) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x;
  for (int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth; c < cols;
       c += int64_t{gridDim.y} * kThreads * kWidth) {
    const Vector<In, kWidth> g = Load<kWidth>(gate + r * gate_stride + c);
    const Vector<In, kWidth> u = Load<kWidth>(up + r * up_stride + c);
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = function(static_cast<float>(g.at[i]), static_cast<float>(u.at[i]));
    }
    Store<kWidth>(y + r * y_stride + c, values);
  }
}

// kByRow: gate has one column.
template <typename T, int kWidth, bool kByRow>
__global__ void SigmoidMulKernel(const float* gate, int64_t gate_stride, T* x, int64_t stride,
                                 int64_t cols) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x;
  for (int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth; c < cols;
       c += int64_t{gridDim.y} * kThreads * kWidth) {
    const Vector<float, kByRow ? 1 : kWidth> g =
        Load < kByRow ? 1 : kWidth > (gate + r * gate_stride + (kByRow ? 0 : c));
    const Vector<T, kWidth> v = Load<kWidth>(x + r * stride + c);
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = static_cast<float>(v.at[i]) / (1.0f + expf(-g.at[kByRow ? 0 : i]));
    }
    Store<kWidth>(x + r * stride + c, values);
  }
}

template <typename T, int kWidth, typename Function>
__global__ void MapKernel(T* x, int64_t stride, int64_t cols, Function function) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x;
  for (int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth; c < cols;
       c += int64_t{gridDim.y} * kThreads * kWidth) {
    const Vector<T, kWidth> v = Load<kWidth>(x + r * stride + c);
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = function(static_cast<float>(v.at[i]));
    Store<kWidth>(x + r * stride + c, values);
  }
}

// x = function(x) in place.
template <typename Function>
void Map(Stream& stream, const MatrixView& x, const Function& function) {
  if (x.rows == 0 || x.cols == 0) return;
  const auto launch = [&]<typename T, int kWidth>() {
    LaunchOverlapping(AsCuda(stream), MapKernel<T, kWidth, Function>, GridOf(x, kWidth), kThreads,
                      0, x.Row<T>(0), x.stride, x.cols, function);
  };
  const bool wide = Aligned(x, 4);
  if (x.dtype == DType::kBF16) {
    wide ? launch.template operator()<__nv_bfloat16, 4>()
         : launch.template operator()<__nv_bfloat16, 1>();
  } else {
    LC_CHECK(x.dtype == DType::kF32, "f32 or bf16");
    wide ? launch.template operator()<float, 4>() : launch.template operator()<float, 1>();
  }
}

struct ReluFunction {
  // Keeps a NaN, which fmaxf would drop.
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};
struct ReluSquaredFunction {
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x * x; }
};
struct GeluFunction {
  GateFunction gate = kGeluTanh;
  __device__ float operator()(float x) const { return gate.Gate(x); }
};

}  // namespace

void GateMul(Stream& stream, const MatrixView& gate, const MatrixView& up, const MatrixView& y,
             const GateFunction& function) {
  LC_CHECK(gate.dtype == up.dtype && gate.rows == up.rows && gate.rows == y.rows &&
           gate.cols == up.cols && gate.cols == y.cols);
  if (y.rows == 0 || y.cols == 0) return;
  const auto launch = [&]<typename In, typename Out, int kWidth>() {
    LaunchOverlapping(AsCuda(stream), GateMulKernel<In, Out, kWidth>, GridOf(y, kWidth), kThreads,
                      0, gate.Row<const In>(0), gate.stride, up.Row<const In>(0), up.stride,
                      y.Row<Out>(0), y.stride, y.cols, function);
  };
  const bool wide = Aligned(gate, 4) && Aligned(up, 4) && Aligned(y, 4);
  if (gate.dtype == DType::kBF16 && y.dtype == DType::kBF16) {
    wide ? launch.operator()<__nv_bfloat16, __nv_bfloat16, 4>()
         : launch.operator()<__nv_bfloat16, __nv_bfloat16, 1>();
  } else if (gate.dtype == DType::kF32 && y.dtype == DType::kBF16) {
    wide ? launch.operator()<float, __nv_bfloat16, 4>()
         : launch.operator()<float, __nv_bfloat16, 1>();
  } else {
    LC_CHECK(gate.dtype == DType::kF32 && y.dtype == DType::kF32, "f32 or bf16");
    wide ? launch.operator()<float, float, 4>() : launch.operator()<float, float, 1>();
  }
}

void SigmoidMul(Stream& stream, const MatrixView& gate, const MatrixView& x) {
  const bool by_row = gate.cols != x.cols;
  const auto launch = [&]<typename T, int kWidth>() {
    const auto kernel =
        by_row ? SigmoidMulKernel<T, kWidth, true> : SigmoidMulKernel<T, kWidth, false>;
    LaunchOverlapping(AsCuda(stream), kernel, GridOf(x, kWidth), kThreads, 0,
                      gate.Row<const float>(0), gate.stride, x.Row<T>(0), x.stride, x.cols);
  };
  const bool wide = (by_row || Aligned(gate, 4)) && Aligned(x, 4);
  if (x.dtype == DType::kBF16) {
    wide ? launch.operator()<__nv_bfloat16, 4>() : launch.operator()<__nv_bfloat16, 1>();
  } else {
    LC_CHECK(x.dtype == DType::kF32, "f32 or bf16");
    wide ? launch.operator()<float, 4>() : launch.operator()<float, 1>();
  }
}

void Relu(Stream& stream, const MatrixView& x) { Map(stream, x, ReluFunction()); }
void ReluSquared(Stream& stream, const MatrixView& x) { Map(stream, x, ReluSquaredFunction()); }
void Gelu(Stream& stream, const MatrixView& x) { Map(stream, x, GeluFunction()); }

void Xielu(Stream& stream, const XieluFunction& function, const MatrixView& x) {
  Map(stream, x, function);
}

}  // namespace litecache::ops::cuda
