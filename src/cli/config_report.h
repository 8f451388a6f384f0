// What a model's config says, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/config.h"

namespace litecache::cli {

// Several lines: family, parameters, layers, heads, RoPE; experts, windows and states if it has
// any.
std::string ConfigText(const model::ModelConfig& config);
nlohmann::ordered_json ConfigJson(const model::ModelConfig& config);

}  // namespace litecache::cli
