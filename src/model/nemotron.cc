// Nemotron 3 and 4, Minitron: LayerNorm whose weights are stored less 1, RoPE on half a head, and
// feed-forward blocks that square what ReLU leaves, and have no gate.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseNemotron(const io::JsonFields& fields, ModelConfig& config) {
  ParseUngated(fields, "relu2", FeedForward::kReluSquared, config);
  ParseRmsFamily(fields, config, {.rotary_share = 0.5});
  RefuseSlidingLayers(fields);
  config.norm_eps = fields.Number("norm_eps", 0, 1).value_or(1e-5);
  config.layer_norm = true;
  config.norm_bias = true;
  config.norm_added = 1;
  config.attention_bias = fields.Bool("attention_bias").value_or(false);
  config.attention_output_bias = config.attention_bias;
  config.mlp_bias = fields.Bool("mlp_bias").value_or(false);
}

}  // namespace

const FamilySpec kNemotronSpec = {Family::kNemotron, "NemotronForCausalLM", ParseNemotron,
                                  BuildTransformer};

}  // namespace litecache::model
