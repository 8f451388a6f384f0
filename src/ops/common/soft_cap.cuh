// The soft cap of attention's scores and of logits in kernels; the CPU's is in
// ops/dense/soft_cap_cpu.h.
#pragma once

#include <cstddef>

#include "ops/common/tensor_core.cuh"

namespace litecache::ops::cuda {

inline constexpr float kLog2E = 1.44269504f;

// cap tanh(x / cap), with an absolute error below 1e-6 cap.
struct SoftCapOf {
  float cap = 0;       // 0: none
  float exponent = 0;  // of 2, for each unit of |x|

  SoftCapOf() = default;
  __host__ __device__ explicit SoftCapOf(float c)
      : cap(c), exponent(c == 0 ? 0 : -2 * kLog2E / c) {}

  // Infinities become the cap, NaN stays NaN.
  __device__ float operator()(float x) const {
    // tanh(|y|) = (1 - e) / (1 + e) with e = exp(-2 |y|) <= 1.
    const float e = Exp2(fabsf(x) * exponent);
    return copysignf(cap * __fdividef(1 - e, 1 + e), x);
  }
  // Caps numbers, or arrays of them, if there is a cap: one branch, which all threads of a launch
  // take alike.
  template <class Numbers>
  __device__ void Apply(Numbers& numbers) const {
    if (cap != 0) ApplyToEach(numbers);
  }

 private:
  __device__ void ApplyToEach(float& x) const { x = (*this)(x); }
  template <class Numbers, size_t kCount>
  __device__ void ApplyToEach(Numbers (&numbers)[kCount]) const {
#pragma unroll
    for (size_t i = 0; i < kCount; ++i) ApplyToEach(numbers[i]);
  }
};

}  // namespace litecache::ops::cuda
