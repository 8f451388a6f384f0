// The matrices that a model's decoder takes, without their values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weight_types.h"

namespace litecache::model {

// rows, cols: of the tensor, of which the decoder may take a part of the rows, or another order.
struct LinearMatrix {
  std::string tensor;
  int64_t rows = 0, cols = 0;
};

// In the decoder's order, each tensor once; embeddings and experts' routers are among them. types:
// of a checkpoint or of none.
std::vector<LinearMatrix> LinearMatrices(const ModelConfig& config, const WeightTypes& types);

}  // namespace litecache::model
