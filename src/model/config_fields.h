// Shared by the families' config parsers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "model/config.h"

namespace litecache::model {

// Far above any model, low enough that no size computed from them overflows 64 bits:
// 2^10 layers * 3 * 2^20 * 2^20 weights of 4 bytes < 2^63.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = int64_t{1} << 10;
inline constexpr int64_t kMaxHeads = int64_t{1} << 12;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 10;
// Positions are int32 in every operation.
inline constexpr int64_t kMaxContext = int64_t{1} << 30;

// What a family's config has where a field is missing, as its config class in Transformers has it:
// files may leave out what equals it.
struct FamilyDefaults {
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads, as where the field is null
  // The share of a head that RoPE rotates; none: the family rotates whole heads, and another share
  // is refused.
  std::optional<double> rotary_share;
  std::string_view layer_type = "";  // as in ParseRope
  double theta = 10000;
  double norm_eps = 1e-6;
};
// Parses the fields that all families but OPT have in common: widths, heads, context, RoPE.
// config.feed_forward is known (ParseUngated).
void ParseRmsFamily(const io::JsonFields& fields, ModelConfig& config,
                    const FamilyDefaults& defaults = {});
// Feed-forward blocks without a gate; `hidden_act` must be `activation`, if it is there.
void ParseUngated(const io::JsonFields& fields, const char* activation, FeedForward feed_forward,
                  ModelConfig& config);

// `layer_types`, which has an element for each layer; none: the field is missing.
std::optional<std::vector<std::string>> ParseLayerTypes(const io::JsonFields& fields,
                                                        const ModelConfig& config);

// Windows of `sliding_window` tokens, or default_window (0: none) if the field is missing, in the
// layers that `layer_types` names, or that `by_default` does; nowhere if the field is null, or if
// no context is longer and such layers have no config.window_rope of their own. Throws Unsupported
// for other types of layers.
void ParseWindows(const io::JsonFields& fields, ModelConfig& config,
                  const std::function<bool(int64_t layer)>& by_default, int64_t default_window = 0);
// The same for all layers.
void ParseWindows(const io::JsonFields& fields, ModelConfig& config, int64_t default_window = 0);

// Experts of `count_field` or, as newer configs have it, `num_local_experts`, of which each row
// gets active_field; width_field: their intermediate width. Names are the caller's. Throws
// FileError if all of a layer's together are wider than a block may be.
ExpertConfig ParseExperts(const io::JsonFields& fields, const char* count_field,
                          const char* width_field,
                          const char* active_field = "num_experts_per_tok");
// Experts that all rows use: so many, of the others' width, in one block `shared_experts`.
void ParseSharedExperts(const io::JsonFields& fields, const char* count_field,
                        int64_t default_count, ExpertConfig* experts);
// Experts of Qwen's configs (qwen2.cc); config.layers is known.
ExpertConfig ParseQwenExperts(const io::JsonFields& fields, const ModelConfig& config,
                              bool normalized_by_default);

// Throws Unsupported if `layer_types` names anything but full attention.
void RefuseSlidingLayers(const io::JsonFields& fields);

// Windows of Qwen's configs (qwen2.cc), which families give to different layers by default.
void ParseQwenWindows(const io::JsonFields& fields, ModelConfig& config,
                      bool (*by_default)(int64_t layer, int64_t max_window_layers));

// rotary_dim from `partial_rotary_factor`; config.head_dim is known.
void ParseRotaryShare(const io::JsonFields& fields, std::optional<double> default_share,
                      ModelConfig& config);

// Throws FileError if longrope's factors are not as many as the frequencies of a head.
void CheckLongRope(const io::JsonFields& fields, const ModelConfig& config);

// RoPE from `rope_theta` and `rope_scaling`, or from `rope_parameters`. max_positions is
// max_position_embeddings, which yarn, llama3 and longrope fall back to. layer_type: of which
// layers, where `rope_parameters` tells them apart; empty: such a config is refused. Type
// dynamic is read only with HunYuan's `alpha`, which does not depend on the context.
RopeConfig ParseRope(const io::JsonFields& fields, int64_t max_positions,
                     std::string_view layer_type = "", double default_theta = 10000);
// Whether the config has one of these objects, and not empty.
bool HasRopeParameters(const io::JsonFields& fields);
// How the scale of queries grows, from `llama_4_scaling_beta` beside RoPE's parameters.
void ParseQueryGrowth(const io::JsonFields& fields, RopeConfig& rope);
// RoPE of layers with a window, in families where it is not scaled.
RopeConfig ParseWindowRope(const io::JsonFields& fields, int64_t max_positions,
                           double default_theta);

// The object `text_config` of a model with images, completed by what stands beside it, as the
// config of `architecture`; if there is no such object, all of the document's (Qwen2.5-VL).
nlohmann::json InnerTextConfig(const nlohmann::json& document, const char* architecture);
// What all Gemma models have in common (gemma.cc).
void ParseGemma(const io::JsonFields& fields, ModelConfig& config, int64_t default_head_dim);
// The config of the language model in that of Gemma 3 with images (gemma.cc).
nlohmann::json GemmaTextConfig(const nlohmann::json& document);

// The config of the language model in that of Mistral's models with images (llama.cc).
nlohmann::json MistralTextConfig(const nlohmann::json& document);

// The context after scaling, at most kMaxContext.
int64_t StretchedContext(const RopeConfig& rope, int64_t max_positions);

}  // namespace litecache::model
