// A norm's tensors.
#pragma once

#include <cstdint>
#include <string>

#include "model/weights.h"

namespace litecache::model {

// [n] each. Without a weight there is no norm; bias: of a LayerNorm, or null.
struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

// The tensors name + ".weight" and, if `bias`, name + ".bias". added: to every weight in the file.
inline NormWeights TakeNorm(WeightStore& weights, const std::string& name, int64_t n, float added,
                            bool bias) {
  NormWeights norm;
  norm.weight = weights.NormWeight(name + ".weight", n, added);
  if (bias) norm.bias = weights.Bias(name + ".bias", n);
  return norm;
}

}  // namespace litecache::model
