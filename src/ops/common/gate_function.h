// The non-linearity of a feed-forward block's gate.
#pragma once

#include <cmath>

#include "ops/common/host_device.h"

namespace litecache::ops {

// f(g) = g / (1 + exp(-(linear + cubic g^2) g)): SiLU, and GELU in its tanh form, since
// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
struct GateFunction {
  float linear = 1, cubic = 0;

  LC_HOST_DEVICE float operator()(float g) const {
    // Beyond this, the exponential is 0 or infinite anyway; without a limit, 0 times infinity.
    const float square = fminf(g * g, 1e30f);
    return g / (1.0f + expf(-(linear + cubic * square) * g));
  }
};

inline constexpr GateFunction kSilu = {};
// 2 sqrt(2 / pi), and 0.044715 times as much.
inline constexpr GateFunction kGeluTanh = {.linear = 1.5957691216057308f,
                                           .cubic = 0.0713548162726009f};

}  // namespace litecache::ops
