// The non-linearity of a feed-forward block: what its gate and its up product make together.
#pragma once

#include <cmath>

#include "ops/common/host_device.h"

namespace litecache::ops {

// f(gate) * (up + up_added), with gate at most `limit` and up within [-limit, limit];
// f(g) = g / (1 + exp(-(linear + cubic g^2) g)): SiLU, and GELU in its tanh form, since
// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
struct GateFunction {
  float linear = 1, cubic = 0;
  float limit = INFINITY, up_added = 0;

  // The two factors.
  LC_HOST_DEVICE float Gate(float gate) const {
    const float g = fminf(gate, limit);
    // Beyond this, the exponential is 0 or infinite anyway; without a limit, 0 times infinity.
    const float square = fminf(g * g, 1e30f);
    return g / (1.0f + expf(-(linear + cubic * square) * g));
  }
  LC_HOST_DEVICE float Up(float up) const { return fminf(fmaxf(up, -limit), limit) + up_added; }
  LC_HOST_DEVICE float operator()(float gate, float up) const { return Gate(gate) * Up(up); }
};

inline constexpr GateFunction kSilu = {};
// 2 sqrt(2 / pi), and 0.044715 times as much.
inline constexpr GateFunction kGeluTanh = {.linear = 1.5957691216057308f,
                                           .cubic = 0.0713548162726009f};
// gpt-oss.
inline constexpr GateFunction kClampedSwiglu = {.linear = 1.702f, .limit = 7, .up_added = 1};

}  // namespace litecache::ops
