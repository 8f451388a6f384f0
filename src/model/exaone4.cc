// EXAONE 4: norms after the blocks, and of every head's query and key; where some layers have
// windows, the others have no RoPE.
#include <string>
#include <vector>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

// Which layers have a window if `layer_types` does not say it: all but every fourth, all but every
// n-th, or the L of a pattern of L and G, which repeats.
std::vector<bool> PatternOfWindows(const io::JsonFields& fields, const ModelConfig& config) {
  constexpr const char* kPattern = "sliding_window_pattern";
  std::string pattern = "LLLG";
  const nlohmann::json* given = fields.Find(kPattern);
  if (given != nullptr && given->is_string()) {
    pattern = *fields.String(kPattern);
    if (pattern.empty() || pattern.find_first_not_of("LG") != std::string::npos) {
      fields.Fail(kPattern, "must be a number, or consist of L and G");
    }
  } else if (const auto every = fields.Int(kPattern, 1, kMaxLayers)) {
    pattern = std::string(static_cast<size_t>(*every - 1), 'L') + 'G';
  }
  std::vector<bool> windows;
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    windows.push_back(pattern[layer % pattern.size()] == 'L');
  }
  return windows;
}

void ParseExaone4(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.norm_eps = 1e-5});
  config.norms = {.attention_input = "",
                  .attention_output = "post_attention_layernorm",
                  .feed_forward_input = "",
                  .feed_forward_output = "post_feedforward_layernorm"};
  config.qk_norm = true;
  if (fields.IsNull("sliding_window")) return RefuseSlidingLayers(fields);
  std::vector<bool> windows = PatternOfWindows(fields, config);
  if (const auto types = ParseLayerTypes(fields, config)) {
    for (size_t i = 0; i < types->size(); ++i) windows[i] = (*types)[i] == "sliding_attention";
  }
  for (const bool window : windows) config.unrotated.push_back(!window);
  ParseWindows(
      fields, config, [&](int64_t layer) { return windows[static_cast<size_t>(layer)]; },
      /*default_window=*/4096);
}

}  // namespace

const FamilySpec kExaone4Spec = {Family::kExaone4, "Exaone4ForCausalLM", ParseExaone4,
                                 BuildTransformer};

}  // namespace litecache::model
