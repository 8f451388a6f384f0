// Gemma 4 in the metadata of a GGUF model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "model/gguf_keys.h"

namespace litecache::model {

// The fields of config.json that say what its layers are: their heads, windows, widths and RoPE.
// Throws FileError and Unsupported that name the file and the key or the tensor.
nlohmann::json Gemma4JsonOfGguf(const io::Checkpoint& checkpoint, const ArchitectureKeys& keys,
                                int64_t layers);

}  // namespace litecache::model
