// A linear layer's tensors.
#pragma once

#include <cstdint>
#include <string>

#include "base/matrix_view.h"
#include "model/weights.h"

namespace litecache::model {

// bias [out] or null.
struct LinearWeights {
  MatrixView weight;
  const float* bias = nullptr;
};

// The tensors name + ".weight" [out, in] and, if `bias`, name + ".bias".
inline LinearWeights TakeLinear(WeightStore& weights, const std::string& name, int64_t out,
                                int64_t in, bool bias) {
  LinearWeights linear;
  linear.weight = weights.Matrix(name + ".weight", out, in);
  if (bias) linear.bias = weights.Bias(name + ".bias", out);
  return linear;
}
// The same for a layer's matrix, which may be offloaded.
inline LinearWeights TakeLinear(WeightStore& weights, const LayerPlace& place,
                                const std::string& name, int64_t out, int64_t in, bool bias) {
  LinearWeights linear;
  linear.weight = weights.LayerMatrix(place, name + ".weight", out, in);
  if (bias) linear.bias = weights.Bias(name + ".bias", out);
  return linear;
}

}  // namespace litecache::model
