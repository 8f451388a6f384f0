// Numbers of single families in a GGUF file's metadata: their scales, and caps of logits.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "model/gguf_keys.h"

namespace litecache::model {

nlohmann::json GraniteScalesOfGguf(const ArchitectureKeys& keys, int64_t head_dim);

// Of Gemma 2 and 3. width_dim: of the heads that the model's width would have.
nlohmann::json GemmaScalesOfGguf(const ArchitectureKeys& keys, int64_t layers, int64_t width_dim,
                                 int64_t head_dim);

}  // namespace litecache::model
