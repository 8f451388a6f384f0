#include "model/gguf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/block_format.h"
#include "base/error.h"
#include "base/join.h"
#include "model/config_fields.h"
#include "model/gguf_delta.h"
#include "model/gguf_experts.h"
#include "model/gguf_families.h"
#include "model/gguf_gemma4.h"
#include "model/gguf_keys.h"
#include "model/gguf_rope.h"
#include "model/gguf_scales.h"

namespace litecache::model {
namespace {

using nlohmann::json;

constexpr std::string_view kGemma2 = "gemma2", kGemma = "gemma3", kGptOss = "gpt-oss";
constexpr std::string_view kGlm4 = "glm4", kPhi3 = "phi3", kSeedOss = "seed_oss";
constexpr std::string_view kExaone4 = "exaone4", kQwen35 = "qwen35", kGranite = "granite";
constexpr std::string_view kOlmo2 = "olmo2";
// Architectures, and what "architectures" of config.json has for them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 32> kArchitectures = {{
    {"llama", "LlamaForCausalLM"},
    {"mistral3", "Ministral3ForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen2moe", "Qwen2MoeForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3moe", "Qwen3MoeForCausalLM"},
    {kQwen3Next, "Qwen3NextForCausalLM"},
    {kQwen35, "Qwen3_5ForCausalLM"},
    {kQwen35Moe, "Qwen3_5MoeForCausalLM"},
    {kOlmo2, "Olmo2ForCausalLM"},
    {"olmoe", "OlmoeForCausalLM"},
    {kGemma2, "Gemma2ForCausalLM"},
    {kGemma, "Gemma3ForCausalLM"},
    {kGemma4, "Gemma4ForCausalLM"},
    {kPhi3, "Phi3ForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
    {kGlm4, "Glm4ForCausalLM"},
    {kGlm4Moe, "Glm4MoeForCausalLM"},
    {kGranite, "GraniteForCausalLM"},
    {kGptOss, "GptOssForCausalLM"},
    {kSeedOss, "SeedOssForCausalLM"},
    {"ernie4_5", "Ernie4_5ForCausalLM"},
    {"ernie4_5-moe", "Ernie4_5_MoeForCausalLM"},
    {kExaone4, "Exaone4ForCausalLM"},
    {kMiniMaxM2, "MiniMaxM2ForCausalLM"},
    {"apertus", "ApertusForCausalLM"},
    {"arcee", "ArceeForCausalLM"},
    {"command-r", "CohereForCausalLM"},
    {"cohere2", "Cohere2ForCausalLM"},
    {"hunyuan-dense", "HunYuanDenseV1ForCausalLM"},
    {"nemotron", "NemotronForCausalLM"},
    {"starcoder2", "Starcoder2ForCausalLM"},
}};
std::string Supported() {
  std::vector<std::string_view> names;
  names.reserve(kArchitectures.size());
  for (const auto& [name, architecture] : kArchitectures) names.push_back(name);
  return Join(names);
}
constexpr std::string_view kRouter = ".mlp.gate.weight";
constexpr std::string_view kSharedGate = ".mlp.shared_expert_gate.weight";
constexpr const char* kRotated = "rope.dimension_count";
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

// Control tokens that end an answer. Files name one of them as the end of a text, and chat models
// end a turn with another.
constexpr std::array<std::string_view, 14> kEnds = {"<|endoftext|>",       "<|end_of_text|>",
                                                    "<|eot_id|>",          "<|eom_id|>",
                                                    "<|im_end|>",          "<|end|>",
                                                    "<|return|>",          "<|call|>",
                                                    "<end_of_turn>",       "<turn|>",
                                                    "<|observation|>",     "<｜end▁of▁sentence｜>",
                                                    "<|end_of_sentence|>", "[EOS]"};
constexpr int64_t kControlToken = 3;
// Gemma 4 ends a call of tools with this one, which is no control token.
constexpr std::string_view kEndOfCall = "<|tool_response>";

// Whether a model has recurrent layers, and a gate of the attention's output.
bool IsRecurrent(std::string_view architecture) {
  return architecture == kQwen35 || architecture == kQwen35Moe || architecture == kQwen3Next;
}

bool RotatesShare(std::string_view architecture) {
  return IsRecurrent(architecture) || architecture == kPhi3 || architecture == kGlm4 ||
         architecture == kGlm4Moe || architecture == kMiniMaxM2 || architecture == "nemotron";
}

// The value of "architectures" in config.json.
std::string_view Architecture(const io::JsonFields& fields) {
  const std::string name = fields.RequiredString("general.architecture");
  const auto* found =
      std::ranges::find(kArchitectures, name, [](const auto& a) { return a.first; });
  if (found == kArchitectures.end()) {
    fields.Refuse("general.architecture", fmt::format("in GGUF, {} are supported", Supported()));
  }
  // Mistral's models are Llama's in GGUF; what differs is the window, of which Mistral's parser
  // knows. OLMo 3 is OLMo 2 with windows.
  const bool window =
      fields.Int(name + ".attention.sliding_window", 0, kMaxContext).value_or(0) > 0;
  if (name == "llama") {
    if (fields.Int("llama.expert_count", 0, kMaxWidth).value_or(0) > 0) return "MixtralForCausalLM";
    if (window) return "MistralForCausalLM";
  }
  if (name == kOlmo2 && window) return "Olmo3ForCausalLM";
  return found->second;
}

std::vector<int64_t> EndIds(const io::Gguf& gguf) {
  std::set<int64_t> ids;
  for (const char* end : {"eos", "eot", "eom"}) {
    const auto id = gguf.fields().Int(fmt::format("tokenizer.ggml.{}_token_id", end), 0, kMaxId);
    if (id) ids.insert(*id);
  }
  if (!gguf.HasArray("tokenizer.ggml.tokens") || !gguf.HasArray("tokenizer.ggml.token_type")) {
    return {ids.begin(), ids.end()};
  }
  const auto tokens = gguf.Strings("tokenizer.ggml.tokens");
  const auto types = gguf.Integers("tokenizer.ggml.token_type");
  // gpt-oss ends a channel with <|end|>, and goes on with the next.
  const bool channels = std::ranges::find(tokens, "<|channel|>") != tokens.end();
  for (size_t id = 0; id < std::min(tokens.size(), types.size()); ++id) {
    const bool ends = std::ranges::find(kEnds, tokens[id]) != kEnds.end();
    const bool control = types[id] == kControlToken;
    if ((control && ends && !(channels && tokens[id] == "<|end|>")) || tokens[id] == kEndOfCall) {
      ids.insert(static_cast<int64_t>(id));
    }
  }
  return {ids.begin(), ids.end()};
}

// Whether a tensor is of a layer behind the model's: of those that predict further tokens, which
// are left out.
bool IsBehindLayers(std::string_view name, int64_t layers) {
  for (const std::string_view prefix : {"model.layers.", "blk."}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view number = name.substr(prefix.size());
    int64_t layer = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), layer);
    return error == std::errc() && end != number.data() + number.size() && *end == '.' &&
           layer >= layers;
  }
  return false;
}
bool PredictsFurther(std::string_view name) {
  constexpr std::array<std::string_view, 6> kParts = {
      ".nextn.eh_proj.weight", ".nextn.embed_tokens.weight",     ".nextn.enorm.weight",
      ".nextn.hnorm.weight",   ".nextn.shared_head_head.weight", ".nextn.shared_head_norm.weight"};
  return std::ranges::any_of(kParts, [&](std::string_view part) { return name.ends_with(part); });
}

// A matrix of the model must be one that its decoder reads: one more would change the results
// elsewhere. layers: without `further` ones, which predict further tokens.
void RefuseUnknownTensors(const io::Checkpoint& checkpoint, std::string_view architecture,
                          bool has_experts, int64_t layers, int64_t further) {
  const auto has = [](std::string_view name, const char* part) {
    return name.find(part) != std::string_view::npos;
  };
  for (const std::string& name : checkpoint.TensorNames()) {
    const bool unknown =
        name.starts_with("blk.")
            ? further == 0 || !IsBehindLayers(name, layers) || !PredictsFurther(name)
            : (!has_experts && has(name, ".mlp.experts.")) ||
                  (!IsRecurrent(architecture) && has(name, ".linear_attn.")) ||
                  (!SharesExperts(architecture) && has(name, ".mlp.shared_expert"));
    if (!unknown) continue;
    throw Unsupported("{}: tensor '{}' is not one of this model; {} are supported",
                      checkpoint.Find(name).file->string(), name, Supported());
  }
}

// The dtypes of all matrices of the layers and beside them. routers: those of experts' routers,
// too.
std::set<std::string> MatrixTypes(const io::Checkpoint& checkpoint, int64_t layers, bool routers) {
  std::set<std::string> types;
  for (const std::string& name : checkpoint.TensorNames()) {
    const io::TensorInfo& info = *checkpoint.Find(name).info;
    // Routers are F32 in all files, and so are the biases of all experts together.
    if (name.ends_with(".bias") || IsBehindLayers(name, layers)) continue;
    const bool router = name.ends_with(kRouter) || name.ends_with(kSharedGate);
    if (info.shape.size() == 2 && (routers || !router)) types.insert(info.dtype);
  }
  return types;
}

// Whether any layer has one: the first may be recurrent.
bool HasQueryBias(const io::Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.TensorNames(), [](const std::string& name) {
    return name.ends_with(".self_attn.q_proj.bias");
  });
}

// bf16 where anything is quantized, else the only type, else the one that loses nothing.
std::string_view WeightType(const std::set<std::string>& types) {
  for (const std::string& type : types) {
    const BlockFormat* format = FindBlockFormat(type);
    if (format != nullptr && format->quantized()) return "bfloat16";
  }
  if (types.size() != 1) return "float32";
  return types.contains("BF16") ? "bfloat16" : types.contains("F16") ? "float16" : "float32";
}

// Layers behind the model's own that predict further tokens.
int64_t FurtherLayers(const ArchitectureKeys& keys, int64_t blocks) {
  constexpr const char* kKey = "nextn_predict_layers";
  const int64_t further = keys.Int(kKey, kMaxLayers, 0);
  if (further >= blocks) keys.Fail(kKey, fmt::format("must be below block_count = {}", blocks));
  return further;
}

// Which layers of OLMo 3, EXAONE 4 and Cohere 2 have windows, if the file says it.
void AddWindowLayers(const io::Gguf& gguf, const ArchitectureKeys& keys, int64_t layers,
                     json* config) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  if (!gguf.HasArray(keys.Name(kPattern))) return;
  const std::vector<int64_t> windowed = gguf.Integers(keys.Name(kPattern));
  if (static_cast<int64_t>(windowed.size()) != layers) {
    keys.Fail(kPattern, fmt::format("must have {} elements", layers));
  }
  for (const int64_t window : windowed) {
    (*config)["layer_types"].push_back(window != 0 ? "sliding_attention" : "full_attention");
  }
}

// Models of an architecture that differ from those that config.json describes so.
void RefuseVariants(const io::Gguf& gguf, const ArchitectureKeys& keys) {
  constexpr const char *kBase = "rope.freq_base_swa", *kFinetuned = "rope.scaling.finetuned";
  constexpr const char* kSections = "rope.dimension_sections";
  const auto theta = keys.Number("rope.freq_base");
  if (keys.architecture() == kOlmo2 && keys.Has(kBase) && keys.Number(kBase) != theta) {
    keys.Refuse(kBase, "layers with a window have the others' base");
  }
  if (keys.architecture() == kGranite &&
      !gguf.fields().Bool(keys.Name(kFinetuned)).value_or(true)) {
    keys.Refuse(kFinetuned, "all layers have RoPE");
  }
  if (keys.architecture() == kGlm4 && gguf.HasArray(keys.Name(kSections))) {
    throw Unsupported(
        "{}: key '{}': models of images, which rotate heads in sections, are not "
        "supported",
        gguf.fields().name(), keys.Name(kSections));
  }
}

}  // namespace

json ConfigJsonOfGguf(const io::Checkpoint& checkpoint) {
  const io::Gguf& gguf = *checkpoint.gguf();
  const io::JsonFields& fields = gguf.fields();
  const std::string_view architecture = Architecture(fields);
  const ArchitectureKeys keys(fields, *fields.String("general.architecture"));
  const bool has_experts = keys.Int("expert_count", kMaxWidth, 0) > 0;
  const bool bias = HasQueryBias(checkpoint);
  const auto has = [&](const char* name) { return checkpoint.Find(name).info != nullptr; };
  const io::TensorInfo* embeddings = checkpoint.Find("model.embed_tokens.weight").info;
  if (embeddings == nullptr) {
    throw FileError("{}: tensor 'token_embd.weight' is missing", checkpoint.path().string());
  }
  const int64_t hidden = keys.Int("embedding_length", kMaxWidth);
  const int64_t blocks = keys.Int("block_count", kMaxLayers);
  const int64_t further = FurtherLayers(keys, blocks);
  const int64_t layers = blocks - further;
  RefuseUnknownTensors(checkpoint, keys.architecture(), has_experts, layers, further);
  const int64_t heads = keys.Int("attention.head_count", kMaxHeads);
  const int64_t head_dim = keys.Int("attention.key_length", kMaxHeadDim, hidden / heads);
  for (const char* key : {"attention.value_length", kRotated}) {
    if (key == kRotated && RotatesShare(keys.architecture())) continue;
    if (keys.Int(key, kMaxHeadDim, head_dim) != head_dim) {
      keys.Refuse(key, fmt::format("only the heads' dimension, {}, is supported", head_dim));
    }
  }
  json config = {
      {"architectures", {architecture}},
      {"hidden_size", hidden},
      {"num_hidden_layers", layers},
      {"num_attention_heads", heads},
      {"head_dim", head_dim},
      {"max_position_embeddings", keys.Int("context_length", kMaxContext)},
      {"rms_norm_eps", keys.Number("attention.layer_norm_rms_epsilon").value_or(1e-5)},
      {"rope_theta", keys.Number("rope.freq_base").value_or(10000.0)},
      {"vocab_size", embeddings->shape.front()},
      {"tie_word_embeddings", !has("lm_head.weight")},
      {"attention_bias", bias},
      {"attention_out_bias", has("model.layers.0.self_attn.o_proj.bias")},
      {"use_bias", bias},
      {"use_qk_norm", has("model.layers.0.self_attn.q_norm.weight")},
      {"mlp_bias", has("model.layers.0.mlp.gate_proj.bias")},
      {"torch_dtype", WeightType(MatrixTypes(checkpoint, layers, /*routers=*/false))},
      {"eos_token_id", EndIds(gguf)},
  };
  if (const auto bos = fields.Int("tokenizer.ggml.bos_token_id", 0, kMaxId)) {
    config["bos_token_id"] = *bos;
  }
  if (json scaling = RopeScalingJsonOfGguf(checkpoint, keys); !scaling.is_null()) {
    config["rope_scaling"] = std::move(scaling);
  }
  if (keys.architecture() == kGemma4) {
    config.update(Gemma4JsonOfGguf(checkpoint, keys, layers));
  } else {
    config["num_key_value_heads"] = keys.Int("attention.head_count_kv", kMaxHeads, heads);
    // Models in which all layers have experts need not say it.
    if (!SharesExperts(keys.architecture()) || keys.Has("feed_forward_length")) {
      config["intermediate_size"] = keys.Int("feed_forward_length", kMaxWidth);
    }
    const int64_t window = keys.Int("attention.sliding_window", kMaxContext, 0);
    config["sliding_window"] = nullptr;  // unlike one that config.json leaves out
    if (window != 0) {
      config["sliding_window"] = window;
      if (keys.architecture() == kOlmo2 || keys.architecture() == kExaone4 ||
          keys.architecture() == "cohere2") {
        AddWindowLayers(gguf, keys, layers, &config);
      }
    }
  }
  if (has_experts) config.update(ExpertsJsonOfGguf(gguf, keys));
  if (IsRecurrent(keys.architecture())) {
    config.update(DeltaJsonOfGguf(gguf, keys, layers));
  }
  if (RotatesShare(keys.architecture())) {
    config["partial_rotary_factor"] = RotatedShareOfGguf(keys, head_dim);
  }
  if (keys.architecture() == kGranite) config.update(GraniteScalesOfGguf(keys, head_dim));
  config.update(FamilyFieldsOfGguf(checkpoint, keys));
  RefuseVariants(gguf, keys);
  // Files do not say so, but the model was trained like that.
  if (keys.architecture() == kGptOss) config["rope_scaling"]["truncate"] = false;
  if (keys.architecture() == kGemma2 || keys.architecture() == kGemma) {
    config.update(GemmaScalesOfGguf(keys, layers, hidden / heads, head_dim));
  }
  return config;
}

std::string_view GgufArchitectureOf(std::string_view hugging_face) {
  const auto* found =
      std::ranges::find(kArchitectures, hugging_face, [](const auto& a) { return a.second; });
  return found == kArchitectures.end() ? "" : found->first;
}

void AddGgufFields(const io::Checkpoint& checkpoint, ModelConfig* config) {
  auto plain = MatrixTypes(checkpoint, config->layers, /*routers=*/true);
  config->quantized = std::erase_if(plain, [](const std::string& type) {
                        return FindBlockFormat(type)->quantized();
                      }) > 0;
  config->converts_weights =
      plain.size() > 1 || (config->quantized && !plain.contains("BF16") && !plain.empty());
  const std::string name = checkpoint.gguf()->fields().RequiredString("general.architecture");
  // By the names that io/gguf_names.cc gives them, as of experts below.
  NormNames& norms = config->norms;
  if (name == kGptOss || name == kSeedOss || name == kGlm4Moe || IsRecurrent(name)) {
    norms.feed_forward_input = "post_self_attn_layernorm";
  } else if (name == kGemma2 || name == kGemma || name == kGemma4) {
    norms.feed_forward_input = "post_attention_layernorm";
  }
  if (!norms.attention_output.empty()) norms.attention_output = "post_self_attn_layernorm";
  if (!norms.feed_forward_output.empty()) norms.feed_forward_output = "post_mlp_layernorm";
  config->norm_added = 0;  // 1 has been added where norms add it
  if (IsRecurrent(name)) config->delta.tiled = name != kQwen3Next;
  AddFamilyFields(checkpoint, name, config);
  NameGgufExperts(&config->experts);
  AddRopeFactors(checkpoint, config);
}

}  // namespace litecache::model
