// RoPE in the metadata and tensors of a GGUF model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/gguf_keys.h"

namespace litecache::model {

// `rope_scaling` of config.json, or null: positions are not scaled, or by AddRopeFactors. Throws
// FileError and Unsupported that name the file and the key or the tensor.
nlohmann::json RopeScalingJsonOfGguf(const io::Checkpoint& checkpoint,
                                     const ArchitectureKeys& keys);

// `partial_rotary_factor` of config.json.
double RotatedShareOfGguf(const ArchitectureKeys& keys, int64_t head_dim);

// `partial_rotary_factor` of RoPE that rotates the first pairs of a head of this dimension alone:
// the file's factors are 1 for these, and for the others so large that they stay as they are.
double ProportionalShareOfGguf(const io::Checkpoint& checkpoint, int64_t head_dim);

// Factors of frequencies that config.json has no field for.
void AddRopeFactors(const io::Checkpoint& checkpoint, ModelConfig* config);

}  // namespace litecache::model
