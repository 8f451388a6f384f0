// Shared by the families' config parsers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

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

// Parses the fields that all families but OPT have in common: widths, heads, context, RoPE.
// default_head_dim: the value if the field is missing; 0: hidden_size / num_attention_heads.
// default_rotary_share: the share of a head that RoPE rotates if the config does not say; none: the
// family rotates whole heads, and another share is refused.
void ParseRmsFamily(const io::JsonFields& fields, ModelConfig& config, int64_t default_head_dim = 0,
                    std::optional<double> default_rotary_share = std::nullopt);

// Throws Unsupported if `layer_types` names anything but full attention.
void RefuseSlidingLayers(const io::JsonFields& fields);

// Throws Unsupported if a Qwen config's sliding window is in effect (qwen2.cc).
void RefuseQwenWindow(const io::JsonFields& fields, const ModelConfig& config);

// Throws Unsupported if `sliding_window` is below the context.
void RefuseWindow(const io::JsonFields& fields, const ModelConfig& config,
                  std::string_view advice = "");

// rotary_dim from `partial_rotary_factor`; config.head_dim is known.
void ParseRotaryShare(const io::JsonFields& fields, std::optional<double> default_share,
                      ModelConfig& config);

// RoPE from `rope_theta` and `rope_scaling`, or from `rope_parameters`. max_positions is
// max_position_embeddings, which yarn and llama3 fall back to.
RopeConfig ParseRope(const io::JsonFields& fields, int64_t max_positions);

// The context after scaling, at most kMaxContext.
int64_t StretchedContext(const RopeConfig& rope, int64_t max_positions);

}  // namespace litecache::model
