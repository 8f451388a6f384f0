// The config of a GGUF model.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "io/checkpoint.h"
#include "model/config.h"

namespace litecache::model {

// The metadata and tensors of a GGUF model as the config.json of the same model, which
// ModelConfig::FromJson parses. Throws FileError and Unsupported that name the file and the key or
// the tensor.
nlohmann::json ConfigJsonOfGguf(const io::Checkpoint& checkpoint);

// The architecture of GGUF that has this name in "architectures" of config.json; empty: none has.
std::string_view GgufArchitectureOf(std::string_view hugging_face);

// Sets what config.json has no fields for: whether weights are converted, the names of
// norms, and the factors of RoPE's frequencies.
void AddGgufFields(const io::Checkpoint& checkpoint, ModelConfig* config);

}  // namespace litecache::model
