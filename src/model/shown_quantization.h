// How a matrix is quantized, where the config of its directory leaves that to the tensors.
#pragma once

#include <cstdint>
#include <string>

#include "io/checkpoint.h"
#include "model/quantization_config.h"

namespace litecache::model {

// Of the matrix [rows, cols] whose tensors' names begin with `module`, "….", in a directory in
// which groups of modules are quantized differently, or of FP8 without block sizes (stated.bits =
// 0). Tensors that do not fit the matrix are reported where they are taken.
QuantizationConfig ShownByTensors(const io::Checkpoint& checkpoint,
                                  const QuantizationConfig& stated, const std::string& module,
                                  int64_t rows, int64_t cols);

}  // namespace litecache::model
