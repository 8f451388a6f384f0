// Seed-OSS: biases of queries, keys and values.
#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

void ParseSeedOss(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.head_dim = 128});
  RefuseSlidingLayers(fields);
  config.attention_bias = fields.Bool("attention_bias").value_or(true);
  config.attention_output_bias = fields.Bool("attention_out_bias").value_or(false);
  config.mlp_bias = fields.Bool("mlp_bias").value_or(false);
}

}  // namespace

const FamilySpec kSeedOssSpec = {Family::kSeedOss, "SeedOssForCausalLM", ParseSeedOss,
                                 BuildTransformer};

}  // namespace litecache::model
