// Gated DeltaNet in the metadata of a GGUF model: qwen35 and qwen35moe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "io/gguf.h"
#include "model/gguf_keys.h"

namespace litecache::model {

// The fields of config.json that say what the recurrent layers are, and which; layers: without
// those that predict further tokens. Throws FileError that names the file and the key.
nlohmann::json DeltaJsonOfGguf(const io::Gguf& gguf, const ArchitectureKeys& keys, int64_t layers);

}  // namespace litecache::model
