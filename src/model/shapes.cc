// Published shapes, for benchmarks without files. Each equals what ModelConfig::FromJson makes of
// the model's config.json, but with bf16 weights throughout (Llama 2 and OPT were published in
// f16), so that comparisons use the same arithmetic.
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
  throw InvalidArgument("unknown shape '{}'; there are {}", name, Join(ShapeNames()));
}

std::vector<std::string> ModelConfig::ShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace litecache::model
