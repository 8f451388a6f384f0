// Apertus: norms of every head's query and key, and feed-forward blocks without a gate, of which
// each learns the two slopes of its xIELU.
#include <fmt/core.h>

#include <optional>
#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

constexpr double kTheta = 12e6;

// What Transformers' ApertusConfig has where a config has no parameters of RoPE; a `rope_theta` of
// its own does not count then.
RopeConfig DefaultRope() {
  RopeConfig rope;
  rope.theta = kTheta;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.original_context = 8192;
  return rope;
}

void ParseApertus(const io::JsonFields& fields, ModelConfig& config) {
  ParseUngated(fields, "xielu", FeedForward::kXielu, config);
  ParseRmsFamily(fields, config, {.theta = kTheta, .norm_eps = 1e-5});
  RefuseSlidingLayers(fields);
  if (!HasRopeParameters(fields)) config.rope = DefaultRope();
  config.norms.attention_input = "attention_layernorm";
  config.norms.feed_forward_input = "feedforward_layernorm";
  config.qk_norm = true;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  for (const auto& [key, wanted] : {std::pair("qk_norm", true), {"post_norm", false}}) {
    if (fields.Bool(key).value_or(wanted) != wanted) {
      fields.Refuse(key, fmt::format("Apertus is supported only with {}", wanted));
    }
  }
}

}  // namespace

const FamilySpec kApertusSpec = {Family::kApertus, "ApertusForCausalLM", ParseApertus,
                                 BuildTransformer};

}  // namespace litecache::model
