#include "model/gguf_metadata.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "io/generation_config.h"
#include "io/json.h"
#include "model/config_fields.h"
#include "model/gguf_config.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;

// general.file_type: what llama.cpp calls a file whose weights are mostly of a type.
constexpr std::array<std::pair<std::string_view, int64_t>, 12> kFileTypes = {{
    {"F32", 0},
    {"F16", 1},
    {"Q4_0", 2},
    {"Q4_1", 3},
    {"Q8_0", 7},
    {"Q5_0", 8},
    {"Q5_1", 9},
    {"Q4_K", 14},
    {"Q5_K", 16},
    {"Q6_K", 18},
    {"BF16", 32},
    {"MXFP4", 38},
}};

void AddSampling(const fs::path& model, io::GgufMetadata* metadata) {
  const auto generation = io::GenerationConfig::FromModel(model);
  const auto number = [&](std::string_view key, std::optional<double> value) {
    if (value) metadata->AddFloat(fmt::format("general.sampling.{}", key), *value);
  };
  number("temp", generation.temperature);
  if (generation.top_k) metadata->AddInt("general.sampling.top_k", *generation.top_k);
  number("top_p", generation.top_p);
  number("min_p", generation.min_p);
  number("penalty_repeat", generation.repetition_penalty);
}

bool SameFrequencies(const ModelConfig& a, const ModelConfig& b) {
  if (a.head_dim != b.head_dim || a.rotated() != b.rotated()) return false;
  const RopeTable first = MakeRopeTable(a.rope, a.rotated());
  const RopeTable second = MakeRopeTable(b.rope, b.rotated());
  // Theta is f32 in GGUF.
  const auto near = [](float x, float y) { return std::fabs(x - y) <= 1e-6f * std::fabs(x); };
  return near(first.attention_factor, second.attention_factor) &&
         std::ranges::equal(first.inv_freq, second.inv_freq, near);
}

}  // namespace

std::vector<float> GgufRopeFactors(const ModelConfig& config) {
  if (config.rope.scaling != RopeScaling::kLlama3) return {};
  RopeConfig plain = config.rope;
  plain.scaling = RopeScaling::kNone;
  const RopeTable before = MakeRopeTable(plain, config.rotated());
  const RopeTable scaled = MakeRopeTable(config.rope, config.rotated());
  std::vector<float> factors;
  for (size_t i = 0; i < before.inv_freq.size(); ++i) {
    const float from = before.inv_freq[i], to = scaled.inv_freq[i], factor = from / to;
    // The neighbour that gives the very frequency, if there is one.
    const float more = std::nextafter(factor, std::numeric_limits<float>::max());
    const float less = std::nextafter(factor, 0.0f);
    factors.push_back(from / more == to ? more : from / less == to ? less : factor);
    if (from / factor == to) factors.back() = factor;
  }
  return factors;
}

std::string_view GgufArchitecture(const ModelConfig& config, const fs::path& model) {
  const bool qwen3 = config.family == Family::kQwen3, qwen2 = config.family == Family::kQwen2;
  const bool llama = config.family == Family::kLlama || config.family == Family::kMistral;
  // Mistral's models are Llama's in GGUF.
  const std::string_view name =
      GgufArchitectureOf(llama ? "LlamaForCausalLM" : std::string_view(config.architecture));
  if ((!llama && !qwen2 && !qwen3) || name.empty()) {
    throw Unsupported(
        "{}: models of {} are not written as GGUF, only those of Llama, Mistral, Qwen2 and Qwen3; "
        "{}",
        model.string(), config.architecture, io::kWriteDirectory);
  }
  const auto refuse = [&](std::string_view what) {
    throw Unsupported("{}: in GGUF, '{}' has no {}; {}", model.string(), name, what,
                      io::kWriteDirectory);
  };
  if (qwen3 && config.attention_bias) refuse("biases of attention");
  if (qwen2 && config.attention_output_bias) refuse("bias of attention's output");
  if (!llama && config.mlp_bias) refuse("biases of feed-forward blocks");
  if (!llama && !config.windowed.empty()) refuse("sliding windows");
  if (config.rope.query_growth != 0) refuse("growth of queries");
  return name;
}

void AddGgufConfig(const ModelConfig& config, const fs::path& model, std::string_view dtype,
                   io::GgufMetadata* metadata) {
  const std::string_view architecture = GgufArchitecture(config, model);
  const auto* type = std::ranges::find(kFileTypes, dtype, [](const auto& t) { return t.first; });
  metadata->AddText("general.architecture", architecture);
  metadata->AddText("general.type", "model");
  metadata->AddText("general.name", fs::weakly_canonical(model).filename().string());
  if (type != kFileTypes.end()) metadata->AddInt("general.file_type", type->second);
  metadata->AddInt("general.quantization_version", 2);
  AddSampling(model, metadata);
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  const auto add = [&](std::string_view name, int64_t v) { metadata->AddInt(key(name), v); };
  const auto number = [&](std::string_view name, double v) { metadata->AddFloat(key(name), v); };
  // Without the scaling that config.max_context includes.
  const auto document = io::ReadJsonFile(model / "config.json");
  const io::JsonFields fields(document, (model / "config.json").string());
  add("context_length",
      fields.Int("max_position_embeddings", 1, kMaxContext).value_or(config.max_context));
  add("embedding_length", config.hidden);
  add("block_count", config.layers);
  add("feed_forward_length", config.intermediate);
  add("attention.head_count", config.q_heads);
  add("attention.head_count_kv", config.kv_heads);
  add("attention.key_length", config.head_dim);
  add("attention.value_length", config.head_dim);
  number("attention.layer_norm_rms_epsilon", config.norm_eps);
  add("rope.dimension_count", config.head_dim);
  number("rope.freq_base", config.rope.theta);
  add("vocab_size", config.vocab);
  if (!config.windowed.empty()) add("attention.sliding_window", config.window);
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn) {
    const bool yarn = rope.scaling == RopeScaling::kYarn;
    metadata->AddText(key("rope.scaling.type"), yarn ? "yarn" : "linear");
    number("rope.scaling.factor", rope.factor);
    if (!yarn) return;
    add("rope.scaling.original_context_length", static_cast<int64_t>(rope.original_context));
    number("rope.scaling.yarn_beta_fast", rope.beta_fast);
    number("rope.scaling.yarn_beta_slow", rope.beta_slow);
  }
}

void CheckGgufConfig(const fs::path& gguf, const ModelConfig& config,
                     const std::vector<int32_t>& eos_ids, const fs::path& model) {
  const ModelConfig read = ModelConfig::FromModel(gguf);
  const auto all = [](const auto& c) {
    return std::tuple(c.layers, c.hidden, c.intermediate, c.q_heads, c.kv_heads, c.head_dim,
                      c.vocab, c.tie_embeddings, c.attention_bias, c.attention_output_bias,
                      c.mlp_bias, c.qk_norm, c.experts.count);
  };
  const std::pair<std::string_view, bool> parts[] = {
      {"shape", all(read) == all(config)},
      {"context", read.max_context == config.max_context},
      {"norms", static_cast<float>(read.norm_eps) == static_cast<float>(config.norm_eps)},
      {"RoPE", SameFrequencies(read, config) && read.unrotated == config.unrotated},
      {"sliding window", read.window == config.window && read.windowed == config.windowed},
      {"scales", std::tuple(read.embedding_scale, read.residual_scale, read.logit_scale) ==
                     std::tuple(config.embedding_scale, config.residual_scale, config.logit_scale)},
      {"end of a text", std::ranges::all_of(eos_ids,
                                            [&](int32_t id) {
                                              return std::ranges::find(read.eos_ids, id) !=
                                                     read.eos_ids.end();
                                            })},
  };
  for (const auto& [part, same] : parts) {
    if (same) continue;
    throw Unsupported("{}: the model's {} has no equal in GGUF; {}", model.string(), part,
                      io::kWriteDirectory);
  }
}

}  // namespace litecache::model
