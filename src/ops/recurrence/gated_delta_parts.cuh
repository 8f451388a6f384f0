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

// What a step's decay is e to minus of.
__device__ inline float DecayExponent(float rate, float log_rate, float rate_bias) {
  const float x = rate + rate_bias;
  const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
  return expf(log_rate) * softplus;
}
__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// What a key or query with this sum of squares is multiplied with to have this length.
__device__ inline float UnitFactor(float squares, float length) {
  return length / sqrtf(squares + 1e-6f);
}

struct DeltaArguments {
  States states;
  Rows<float> convolved;
  Rows<const float> gate;
  // Of prompts, the update token by token replaces these by the decay and the step's sigmoid, for
  // all tokens at once.
  Rows<float> rate, step;
  // The projection's rows, once they are convolved. The update token by token: products of prompts'
  // keys and queries, [T, key_heads]; by chunks: ChunkOperands.
  Rows<float> scratch;
  const float* log_rate;
  const float* rate_bias;
  const float* norm;
  float norm_eps, query_scale;
  int64_t history_floats;
  int32_t key_heads, value_heads, group, key_dim, value_dim;
  bool tiled;  // GatedDeltaShape's
  // Sequences with at least so many rows are updated by chunks, the others token by token.
  int32_t chunked_rows;
  void* out;
  int64_t out_stride;
};

// The key head of a value head, and the value heads of a key head, i < group.
__device__ inline int32_t KeyHead(const DeltaArguments& a, int32_t head) {
  return a.tiled ? head % a.key_heads : head / a.group;
}
__device__ inline int32_t ValueHead(const DeltaArguments& a, int32_t key_head, int32_t i) {
  return a.tiled ? i * a.key_heads + key_head : key_head * a.group + i;
}

// A column of a head's S.
__device__ inline float* StateOf(const DeltaArguments& a, const StepSequence& sequence,
                                 int32_t head, int32_t column) {
  return a.states.Of(sequence) + a.history_floats + int64_t{head} * a.key_dim * a.value_dim +
         column;
}

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
