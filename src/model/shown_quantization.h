// How a matrix is quantized, where the config of its directory does not say it.
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

// The tensor by which the columns of the matrix of such a module are divided, if there is one. AWQ
// divides what an activation function gives by scales where the matrix before it cannot have them,
// as in StarCoder2; here the columns that they meet are. Empty: not of this module.
std::string DivisorsOf(const QuantizationConfig& config, const std::string& module);

}  // namespace litecache::model
