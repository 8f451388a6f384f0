// What the kernels of gated_delta_cuda.h share.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// A matrix's rows in a kernel.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  Rows() = default;
  explicit Rows(const MatrixView& m) : data(static_cast<T*>(m.data)), stride(m.stride) {}
  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};

// Where the states are.
struct States {
  StepView step;
  TableId table;
  int64_t list;

  __device__ float* Of(const StepSequence& sequence) const {
    return reinterpret_cast<float*>(sequence.pages[table][list]);
  }
};

__device__ inline float Silu(float x) { return x / (1.0f + expf(-x)); }

struct ConvolveArguments {
  States states;
  Rows<const float> qkv;
  Rows<float> convolved;
  const float* filter;
  int32_t channels, taps, rows;
};

// The convolution of a step's rows, and their sequences' new histories. Rows of no sequence stay as
// they are. single_rows: no sequence has more than one.
void Convolve(CudaStream& stream, const ConvolveArguments& a, bool single_rows);

}  // namespace litecache::ops::cuda
