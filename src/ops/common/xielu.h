// xIELU (https://arxiv.org/abs/2411.13010), the non-linearity of Apertus' feed-forward blocks: its
// slope grows with positive inputs, and is bounded for negative ones.
#pragma once

#include <cmath>

#include "ops/common/host_device.h"

namespace litecache::ops {

// f(x) = positive x^2 + beta x for x > 0, and otherwise
//        negative (exp(min(x, epsilon)) - 1 - x) + beta x.
struct XieluFunction {
  float positive = 0, negative = 0, beta = 0, epsilon = 0;

  // alpha_positive, alpha_negative: as a model learns them.
  static XieluFunction Of(float alpha_positive, float alpha_negative, float beta, float epsilon) {
    const auto softplus = [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); };
    return {softplus(alpha_positive), beta + softplus(alpha_negative), beta, epsilon};
  }

  LC_HOST_DEVICE float operator()(float x) const {
    if (x > 0) return positive * x * x + beta * x;
    return negative * (expm1f(fminf(x, epsilon)) - x) + beta * x;
  }
};

}  // namespace litecache::ops
