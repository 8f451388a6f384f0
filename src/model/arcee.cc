// Arcee (AFM): Llama with feed-forward blocks that square what ReLU leaves, and have no gate.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseArcee(const io::JsonFields& fields, ModelConfig& config) {
  ParseUngated(fields, "relu2", FeedForward::kReluSquared, config);
  ParseRmsFamily(fields, config, {.norm_eps = 1e-5});
  RefuseSlidingLayers(fields);
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.mlp_bias = fields.Bool("mlp_bias").value_or(false);
}

}  // namespace

const FamilySpec kArceeSpec = {Family::kArcee, "ArceeForCausalLM", ParseArcee, BuildTransformer};

}  // namespace litecache::model
