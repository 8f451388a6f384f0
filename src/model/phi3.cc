// Phi-3 and Phi-4: fused projections, and RoPE on a share of each head.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParsePhi3(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.rotary_share = 1.0, .norm_eps = 1e-5});
  ParseWindows(fields, config);
  config.fused_qkv = true;
  config.fused_gate_up = true;
}

}  // namespace

const FamilySpec kPhi3Spec = {Family::kPhi3, "Phi3ForCausalLM", ParsePhi3, BuildTransformer};

}  // namespace litecache::model
