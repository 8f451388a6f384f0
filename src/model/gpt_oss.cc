// gpt-oss: windows in every other layer, a learned sink for every query head, biases everywhere,
// and experts whose gates are clamped.
#include <cstdint>
#include <utility>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/transformer.h"

namespace litecache::model {
namespace {

// What Transformers' GptOssConfig has where a config says nothing of RoPE.
void SetDefaultRope(ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 32;
  rope.original_context = 4096;
  rope.truncate = false;
  config.max_context = StretchedContext(rope, config.max_context);
}

void ParseGptOss(const io::JsonFields& fields, ModelConfig& config) {
  ParseRmsFamily(fields, config, {.head_dim = 64, .theta = 150000, .norm_eps = 1e-5});
  if (!HasRopeParameters(fields)) SetDefaultRope(config);
  config.attention_bias = fields.Bool("attention_bias").value_or(true);
  config.attention_output_bias = config.attention_bias;
  config.attention_sinks = true;
  ParseWindows(
      fields, config, [](int64_t layer) { return layer % 2 == 0; },
      /*default_window=*/128);
  ExpertConfig& experts = config.experts;
  experts = ParseExperts(fields, "num_local_experts", "intermediate_size");
  experts.stacked = false;  // in another way (stacked_experts.h)
  experts.router = "router";
  experts.bias = true;
  config.gate_function = ops::kClampedSwiglu;
  for (const auto& [key, value] : {std::pair("swiglu_alpha", &config.gate_function.linear),
                                   {"swiglu_limit", &config.gate_function.limit}}) {
    *value = static_cast<float>(fields.Number(key, 1e-6, 1e6).value_or(*value));
  }
}

}  // namespace

const FamilySpec kGptOssSpec = {Family::kGptOss, "GptOssForCausalLM", ParseGptOss,
                                BuildTransformer};

}  // namespace litecache::model
