// Published shapes, for benchmarks without files. Each equals what ModelConfig::FromJson makes of
// the model's config.json, but with bf16 weights throughout (Llama 2 and OPT were published in
// f16), so that comparisons use the same arithmetic.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "model/config.h"
#include "model/families.h"

namespace litecache::model {
namespace {

struct Shape {
  const char* name;
  Family family;
  int64_t hidden, intermediate, layers, q_heads, kv_heads, vocab, max_context;
  double theta;
  double norm_eps;
  bool tied;
  double llama3_factor = 0;  // 0: no scaling
};

constexpr Family kLlama = Family::kLlama;
constexpr Family kQwen2 = Family::kQwen2;

// clang-format off
constexpr Shape kShapes[] = {
    {"llama3.2-1b",  kLlama, 2048,  8192, 16, 32,  8, 128256, 131072, 5e5, 1e-5, true, 32},
    {"llama3.2-3b",  kLlama, 3072,  8192, 28, 24,  8, 128256, 131072, 5e5, 1e-5, true, 32},
    {"llama3-8b",    kLlama, 4096, 14336, 32, 32,  8, 128256,   8192, 5e5, 1e-5, false},
    {"llama3.1-8b",  kLlama, 4096, 14336, 32, 32,  8, 128256, 131072, 5e5, 1e-5, false, 8},
    {"llama3.1-70b", kLlama, 8192, 28672, 80, 64,  8, 128256, 131072, 5e5, 1e-5, false, 8},
    {"llama2-7b",    kLlama, 4096, 11008, 32, 32, 32,  32000,   4096, 1e4, 1e-5, false},
    {"qwen2.5-0.5b", kQwen2,  896,  4864, 24, 14,  2, 151936,  32768, 1e6, 1e-6, true},
    {"qwen2.5-1.5b", kQwen2, 1536,  8960, 28, 12,  2, 151936,  32768, 1e6, 1e-6, true},
    {"qwen2.5-3b",   kQwen2, 2048, 11008, 36, 16,  2, 151936,  32768, 1e6, 1e-6, true},
    {"qwen2.5-7b",   kQwen2, 3584, 18944, 28, 28,  4, 152064,  32768, 1e6, 1e-6, false},
    {"qwen2.5-14b",  kQwen2, 5120, 13824, 48, 40,  8, 152064,  32768, 1e6, 1e-6, false},
    {"qwen3-8b",     Family::kQwen3, 4096, 12288, 36, 32, 8, 151936, 40960, 1e6, 1e-6, false},
    {"qwen3-32b",    Family::kQwen3, 5120, 25600, 64, 64, 8, 151936, 40960, 1e6, 1e-6, false},
    {"mistral-7b",   Family::kMistral, 4096, 14336, 32, 32, 8, 32768, 32768, 1e6, 1e-5, false},
    {"opt-125m",     Family::kOpt,  768,  3072, 12, 12, 12, 50272, 2048, 1e4, 1e-5, true},
    {"opt-6.7b",     Family::kOpt, 4096, 16384, 32, 32, 32, 50272, 2048, 1e4, 1e-5, true},
    {"opt-13b",      Family::kOpt, 5120, 20480, 40, 40, 40, 50272, 2048, 1e4, 1e-5, true},
    {"opt-30b",      Family::kOpt, 7168, 28672, 48, 56, 56, 50272, 2048, 1e4, 1e-5, true},
};

// The same as config.json, for families whose layers differ: what the table has no columns for.
struct ConfigText {
  const char* name;
  const char* architecture;
  const char* fields;
};
constexpr const char* kGemma2Model = "Gemma2ForCausalLM";
constexpr const char* kGemma3 = "Gemma3ForCausalLM";
constexpr const char* kQwen3_5Model = "Qwen3_5ForCausalLM";
constexpr const char* kGptOssModel = "GptOssForCausalLM";
constexpr ConfigText kConfigs[] = {
    {"qwen3-30b-a3b", "Qwen3MoeForCausalLM", R"("hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
      "max_position_embeddings": 262144, "rope_theta": 10000000, "rms_norm_eps": 1e-6, "num_experts": 128,
      "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true)"},
    {"qwen3.5-9b", kQwen3_5Model, R"("hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
      "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
      "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25})"},
    {"qwen3.5-27b", kQwen3_5Model, R"("hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
      "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
      "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25})"},
    {"qwen1.5-moe-a2.7b", "Qwen2MoeForCausalLM", R"("hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
      "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "max_position_embeddings": 8192,
      "rope_theta": 1000000, "rms_norm_eps": 1e-6, "num_experts": 60, "num_experts_per_tok": 4,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": false)"},
    {"qwen3.5-35b-a3b", "Qwen3_5MoeForCausalLM", R"("hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
      "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
      "rms_norm_eps": 1e-6, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256,
      "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25})"},
    {"qwen3-next-80b-a3b", "Qwen3NextForCausalLM", R"("hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
      "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
      "rope_theta": 10000000, "partial_rotary_factor": 0.25)"},
    {"ministral3-8b", "Ministral3ForCausalLM", R"("hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
      "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "yarn",
      "rope_theta": 1000000, "factor": 16, "original_max_position_embeddings": 16384, "mscale": 1, "mscale_all_dim": 1,
      "llama_4_scaling_beta": 0.1})"},
    {"mixtral-8x7b", "MixtralForCausalLM", R"("hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
      "rope_theta": 1000000, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2)"},
    {"olmoe-7b", "OlmoeForCausalLM", R"("hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
      "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 50304, "max_position_embeddings": 4096,
      "rope_theta": 10000, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false)"},
    {"gpt-oss-20b", kGptOssModel, R"("hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
      "max_position_embeddings": 131072, "sliding_window": 128, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn",
      "factor": 32, "original_max_position_embeddings": 4096, "truncate": false}, "num_local_experts": 32,
      "num_experts_per_tok": 4)"},
    {"gpt-oss-120b", kGptOssModel, R"("hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
      "max_position_embeddings": 131072, "sliding_window": 128, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn",
      "factor": 32, "original_max_position_embeddings": 4096, "truncate": false}, "num_local_experts": 128,
      "num_experts_per_tok": 4)"},
    {"gemma3-270m", kGemma3, R"("hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
      "num_key_value_heads": 1, "vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512)"},
    {"gemma3-1b", kGemma3, R"("hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
      "num_key_value_heads": 1, "vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512)"},
    {"gemma3-4b", kGemma3, R"("hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
      "num_key_value_heads": 4, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 1024,
      "rope_scaling": {"rope_type": "linear", "factor": 8})"},
    {"gemma3-12b", kGemma3, R"("hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
      "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 262208, "max_position_embeddings": 131072,
      "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8})"},
    {"gemma3-27b", kGemma3, R"("hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
      "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168,
      "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 1024,
      "rope_scaling": {"rope_type": "linear", "factor": 8})"},
    {"gemma2-2b", kGemma2Model, R"("hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000, "max_position_embeddings": 8192,
      "sliding_window": 4096, "attn_logit_softcapping": 50, "final_logit_softcapping": 30)"},
    {"gemma2-9b", kGemma2Model, R"("hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
      "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 256000, "max_position_embeddings": 8192,
      "sliding_window": 4096, "attn_logit_softcapping": 50, "final_logit_softcapping": 30)"},
    {"gemma2-27b", kGemma2Model, R"("hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
      "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144,
      "vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window": 4096, "attn_logit_softcapping": 50,
      "final_logit_softcapping": 30)"},
};
// clang-format on

ModelConfig MakeConfig(const Shape& shape) {
  ModelConfig config;
  config.family = shape.family;
  config.architecture = SpecOf(shape.family).architecture;
  config.layers = shape.layers;
  config.hidden = shape.hidden;
  config.intermediate = shape.intermediate;
  config.q_heads = shape.q_heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.family == Family::kQwen3 ? 128 : shape.hidden / shape.q_heads;
  config.vocab = shape.vocab;
  config.max_context = shape.max_context;
  config.norm_eps = shape.norm_eps;
  config.embedding_dim = shape.hidden;
  config.tie_embeddings = shape.tied;
  const bool opt = shape.family == Family::kOpt;
  config.attention_bias = opt || shape.family == Family::kQwen2;
  config.attention_output_bias = opt;
  config.mlp_bias = opt;
  config.qk_norm = shape.family == Family::kQwen3;
  config.rope.theta = shape.theta;
  if (shape.llama3_factor != 0) {
    config.rope.scaling = RopeScaling::kLlama3;
    config.rope.factor = shape.llama3_factor;
    config.rope.low_freq_factor = 1;
    config.rope.high_freq_factor = 4;
    config.rope.original_context = 8192;
  }
  // No end-of-sequence ids: generation with random weights ends by length.
  return config;
}

}  // namespace

ModelConfig ModelConfig::FromShapeName(const std::string& name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return MakeConfig(shape);
  }
  for (const auto& [known, architecture, fields] : kConfigs) {
    if (known != name) continue;
    return FromJson(fmt::format(R"({{"architectures": ["{}"], "dtype": "bfloat16", {}}})",
                                architecture, fields),
                    name);
  }
  throw InvalidArgument("unknown shape '{}'; there are {}", name, Join(ShapeNames()));
}

std::vector<std::string> ModelConfig::ShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  for (const ConfigText& config : kConfigs) names.emplace_back(config.name);
  return names;
}

}  // namespace litecache::model
