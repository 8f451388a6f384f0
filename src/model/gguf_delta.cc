#include "model/gguf_delta.h"

#include <fmt/core.h>

#include <string>
#include <vector>

#include "model/config_fields.h"
#include "ops/recurrence/gated_delta.h"

namespace litecache::model {

nlohmann::json DeltaJsonOfGguf(const io::Gguf& gguf, const ArchitectureKeys& keys, int64_t layers) {
  constexpr const char* kKeyHeads = "ssm.group_count";
  constexpr const char* kValueHeads = "ssm.time_step_rank";
  constexpr const char* kWidth = "ssm.inner_size";
  constexpr const char* kInterval = "full_attention_interval";
  const int64_t key_heads = keys.Int(kKeyHeads, kMaxHeads);
  const int64_t value_heads = keys.Int(kValueHeads, kMaxHeads);
  if (value_heads % key_heads != 0) {
    keys.Fail(kValueHeads,
              fmt::format("must be a multiple of {} = {}", keys.Name(kKeyHeads), key_heads));
  }
  const int64_t width = keys.Int(kWidth, kMaxHeads * ops::kMostDeltaDim);
  if (width % value_heads != 0 || width / value_heads > ops::kMostDeltaDim) {
    keys.Fail(kWidth, fmt::format("must be {} = {} times the dimension of a head, at most {}",
                                  keys.Name(kValueHeads), value_heads, ops::kMostDeltaDim));
  }
  nlohmann::json config = {
      {"linear_num_key_heads", key_heads},
      {"linear_num_value_heads", value_heads},
      {"linear_key_head_dim", keys.Int("ssm.state_size", ops::kMostDeltaDim)},
      {"linear_value_head_dim", width / value_heads},
      {"linear_conv_kernel_dim", keys.Int("ssm.conv_kernel", ops::kMostDeltaTaps)},
  };
  const std::string recurrent_key = keys.Name("attention.recurrent_layers");
  if (gguf.HasArray(recurrent_key)) {
    const std::vector<int64_t> recurrent = gguf.Integers(recurrent_key);
    if (static_cast<int64_t>(recurrent.size()) < layers) {
      keys.Fail("attention.recurrent_layers", fmt::format("must have {} elements", layers));
    }
    auto& types = config["layer_types"] = nlohmann::json::array();
    for (int64_t layer = 0; layer < layers; ++layer) {
      types.push_back(recurrent[static_cast<size_t>(layer)] != 0 ? "linear_attention"
                                                                 : "full_attention");
    }
  } else if (keys.Has(kInterval)) {
    config[kInterval] = keys.Int(kInterval, kMaxLayers);
  }
  return config;
}

}  // namespace litecache::model
