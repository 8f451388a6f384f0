// Mixtures of experts in the metadata of a GGUF model.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "io/gguf.h"
#include "model/config.h"
#include "model/gguf_keys.h"

namespace litecache::model {

// Whether models of an architecture have experts that all tokens use, beside the others.
bool SharesExperts(std::string_view architecture);

// The fields of config.json about experts, of a model that has some. Throws FileError and
// Unsupported that name the file and the key.
nlohmann::json ExpertsJsonOfGguf(const io::Gguf& gguf, const ArchitectureKeys& keys);

// Gives experts the names that io/gguf_names.cc has for them.
void NameGgufExperts(ExpertConfig* experts);

}  // namespace litecache::model
