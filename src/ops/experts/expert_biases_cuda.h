// The biases of experts' products, as kernels find them.
#pragma once

#include <cstdint>

#include "ops/common/host_device.h"
#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

struct ExpertBiases {
  const float* data = nullptr;  // of expert 0; null: there are none
  int64_t stride = 0;           // from one expert's to the next one's

  // Of the matrices' rows from `first` on.
  static ExpertBiases Of(const ExpertMatrices& matrices, int64_t first = 0) {
    return {matrices.bias == nullptr ? nullptr : matrices.bias + first, matrices.type.rows};
  }

  // Those of an expert from an output on, or null.
  LC_HOST_DEVICE const float* From(int32_t expert, int64_t output) const {
    return data == nullptr ? nullptr : data + expert * stride + output;
  }
  LC_HOST_DEVICE float At(int32_t expert, int64_t output) const {
    const float* const at = From(expert, output);
    return at == nullptr ? 0 : *at;
  }
};

}  // namespace litecache::ops::cuda
