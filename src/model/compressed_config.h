// `quantization_config` of a directory in the format of compressed-tensors, for weights alone.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace litecache::model {

// Modules ("model.layers.0.mlp.up_proj") whose weights are quantized in the same way.
struct CompressedGroup {
  int bits = 4;
  bool is_float = false;
  int64_t group_size = 0;  // columns; 0: a row
  std::vector<std::string> modules;
};

// groups: at least one, whose modules with `ignored` are all linear layers.
nlohmann::ordered_json CompressedConfig(const std::vector<CompressedGroup>& groups,
                                        const std::vector<std::string>& ignored);

}  // namespace litecache::model
