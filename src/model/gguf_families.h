// What single families have in a GGUF file's metadata, and under which names in its tensors:
// Apertus, Arcee, Command R, Hunyuan, Nemotron and StarCoder2.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/gguf_keys.h"

namespace litecache::model {

// The fields of config.json that other families do not have, or have under other keys. Empty: the
// architecture has none of its own.
nlohmann::json FamilyFieldsOfGguf(const io::Checkpoint& checkpoint, const ArchitectureKeys& keys);
// What the names of tensors, and what converters did to them, change in the config of
// `architecture`.
void AddFamilyFields(const io::Checkpoint& checkpoint, std::string_view architecture,
                     ModelConfig* config);

}  // namespace litecache::model
