// The exponential for softmax weights of logits: the same bits on the host and in kernels, so that
// both draw the same tokens.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/common/host_device.h"

namespace litecache::ops {

namespace exp_weight {

// Each operation is rounded separately, also on the device, where the compiler would fuse two.
LC_HOST_DEVICE float Product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
LC_HOST_DEVICE float Sum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
LC_HOST_DEVICE int32_t Bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_int(x);
#else
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}
LC_HOST_DEVICE float Float(int32_t bits) {
#ifdef __CUDA_ARCH__
  return __int_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

}  // namespace exp_weight

// e^x for x <= 0 (-infinity included), relative error below 3e-7; 0 below -87, where a float's
// exponent ends. Comparisons are of integers: those of floats may trap, so compilers would keep
// branches instead of vectorizing loops.
LC_HOST_DEVICE float ExpOfNonPositive(float x) {
  using exp_weight::Bits;
  using exp_weight::Float;
  using exp_weight::Product;
  using exp_weight::Sum;
  constexpr int32_t kLimit = 0x42ae0000;  // the bits of 87
  const int32_t magnitude = Bits(x) & 0x7fffffff;
  const int32_t keep = -static_cast<int32_t>(magnitude < kLimit);
  const float clamped = -Float((magnitude & keep) | (kLimit & ~keep));
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer.
  const float shifted = Sum(Product(clamped, 1.44269504f), 12582912.0f);
  const float n = Sum(shifted, -12582912.0f);
  const float r = Sum(Sum(clamped, -Product(n, 0.693145752f)), -Product(n, 1.42860677e-6f));
  float p = 1.3888889e-3f;  // Taylor series: its remainder at ln 2 / 2 is 1e-7 relative
  p = Sum(Product(p, r), 8.3333333e-3f);
  p = Sum(Product(p, r), 4.1666667e-2f);
  p = Sum(Product(p, r), 1.6666667e-1f);
  p = Sum(Product(p, r), 0.5f);
  p = Sum(Product(p, r), 1.0f);
  p = Sum(Product(p, r), 1.0f);
  // 2^n from shifted's low bits, which hold n; all bits are cleared if x is too low.
  const uint32_t exponent = (static_cast<uint32_t>(Bits(shifted)) + 127u) << 23;
  return Product(p, Float(static_cast<int32_t>(exponent & static_cast<uint32_t>(keep))));
}

}  // namespace litecache::ops
