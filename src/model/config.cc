#include "model/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/join.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "model/config_fields.h"
#include "model/families.h"
#include "model/gguf_config.h"
#include "model/own_head.h"
#include "ops/experts/experts.h"

namespace litecache::model {
namespace {

// The architecture that a config names, found in the order in which Transformers looks.
const FamilySpec& FindFamily(const io::JsonFields& fields) {
  std::vector<std::string_view> supported;
  for (const FamilySpec& spec : Families()) supported.push_back(spec.architecture);
  if (const nlohmann::json* list = fields.Find("architectures")) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      fields.Fail("architectures", "must be a list of names");
    }
    const auto& architecture = list->front().get_ref<const std::string&>();
    for (const FamilySpec& spec : Families()) {
      if (spec.architecture == architecture) return spec;
    }
    fields.Refuse("architectures", "supported are " + Join(supported));
  }
  if (const auto type = fields.String("model_type")) {
    for (const FamilySpec& spec : Families()) {
      if (Name(spec.family) == *type) return spec;
    }
    fields.Refuse("model_type", "supported are " + Join(supported));
  }
  throw FileError("{}: names neither 'architectures' nor 'model_type'; supported are {}",
                  fields.name(), Join(supported));
}

DType ParseDType(const io::JsonFields& fields) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!fields.Has(key)) continue;
    const std::string text = *fields.String(key);
    if (text == "bfloat16") return DType::kBF16;
    if (text == "float16") return DType::kF16;
    if (text == "float32") return DType::kF32;
    fields.Refuse(key, "weights are bfloat16, float16 or float32");
  }
  return DType::kF32;  // as Transformers assumes if the field is missing
}

// The config of the language model, if it is part of one that also reads images.
nlohmann::json TextConfig(const nlohmann::json& document) {
  const auto list = document.find("architectures");
  if (list == document.end() || !list->is_array() || list->empty()) return document;
  if (list->front() == "Gemma3ForConditionalGeneration") return GemmaTextConfig(document);
  if (list->front() == "Mistral3ForConditionalGeneration") return MistralTextConfig(document);
  for (const auto& [whole, text] :
       {std::pair("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
        {"Qwen2VLForConditionalGeneration", "Qwen2ForCausalLM"},
        {"Qwen2_5_VLForConditionalGeneration", "Qwen2ForCausalLM"},
        {"Qwen3VLForConditionalGeneration", "Qwen3ForCausalLM"},
        {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
        {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"}}) {
    if (list->front() == whole) return InnerTextConfig(document, text);
  }
  return document;
}

// The contents of a config.json; `name` begins messages.
ModelConfig ParseConfig(const nlohmann::json& whole, const std::string& name) {
  const nlohmann::json document = TextConfig(whole);
  const io::JsonFields fields(document, name);
  const FamilySpec& spec = FindFamily(fields);

  ModelConfig config;
  config.family = spec.family;
  config.architecture = spec.architecture;
  config.weight_dtype = ParseDType(fields);
  config.quantization = ParseQuantization(fields);
  config.quantized = config.quantization.has_value();
  config.vocab = fields.RequiredInt("vocab_size", 1, kMaxVocab);
  config.hidden = fields.RequiredInt("hidden_size", 1, kMaxWidth);
  config.layers = fields.RequiredInt("num_hidden_layers", 1, kMaxLayers);
  config.q_heads = fields.RequiredInt("num_attention_heads", 1, kMaxHeads);
  for (const int64_t id :
       fields.IntOrInts("eos_token_id", -1, std::numeric_limits<int32_t>::max())) {
    if (id >= 0) config.eos_ids.push_back(static_cast<int32_t>(id));
  }
  const auto bos = fields.IntOrInts("bos_token_id", -1, std::numeric_limits<int32_t>::max());
  if (!bos.empty()) config.bos_id = static_cast<int32_t>(bos.front());
  spec.parse(fields, config);
  CheckLongRope(fields, config);
  config.LimitContext(config.max_context);
  return config;
}

// Weights of a layer's attention.
int64_t CountAttention(const ModelConfig& c, int64_t layer) {
  const int64_t q = c.q_width_of(layer);
  const int64_t kv = c.shares_rows(layer) ? 0 : c.kv_width_of(layer);
  const int64_t values = c.keys_as_values && !c.has_window(layer) ? 0 : kv;
  int64_t total = c.hidden * ((c.output_gate ? 3 : 2) * q + kv + values);
  if (c.attention_bias) total += q + kv + values;
  if (c.attention_output_bias) total += c.hidden;
  if (c.qk_norm) total += (kv > 0 ? 2 : 1) * c.head_dim_of(layer);
  if (c.wide_qk_norm) total += q + kv;
  if (c.attention_sinks) total += c.q_heads;
  return total;
}

// Weights of a model of whose experts each layer has so many.
int64_t CountParameters(const ModelConfig& c, int64_t experts) {
  const bool opt = c.family == Family::kOpt;
  const int64_t mlp_matrices = opt || c.feed_forward != FeedForward::kGated ? 2 : 3;
  const int64_t mlp_biases = c.mlp_bias ? (mlp_matrices - 1) * c.intermediate + c.hidden : 0;
  const int64_t norm = opt || c.norm_bias ? 2 * c.hidden : c.hidden;
  int64_t layer_norms = 0;
  for (const std::string* name : {&c.norms.attention_input, &c.norms.attention_output,
                                  &c.norms.feed_forward_input, &c.norms.feed_forward_output}) {
    layer_norms += name->empty() ? 0 : 1;
  }
  // An expert's row of the router, and with it all that is its own.
  const int64_t router =
      c.hidden + (c.experts.bias ? 1 : 0) + (c.experts.correction.empty() ? 0 : 1);
  int64_t expert = router + 3 * c.hidden * c.experts.intermediate + (c.experts.beside ? 1 : 0);
  if (c.experts.bias) expert += 2 * c.experts.intermediate + c.hidden;
  const int64_t shared = c.hidden * (3 * c.experts.shared + (c.experts.gates_shared() ? 1 : 0));
  const ops::GatedDeltaShape& d = c.delta;
  const int64_t delta_weights = c.hidden * (d.channels() + 2 * d.width() + 2 * d.value_heads) +
                                d.channels() * d.taps + 2 * d.value_heads + d.value_dim;
  int64_t total = c.layers * layer_norms * norm;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    total += c.is_recurrent(layer) ? delta_weights : CountAttention(c, layer);
    if (c.has_experts(layer)) {
      total += experts * expert + (c.experts.count - experts) * router + shared;
      if (c.experts.beside) total += 4 * c.hidden;  // three norms, and the router's
    }
    if (c.has_ordinary_block(layer)) {
      total += mlp_matrices * c.hidden * c.intermediate_of(layer) + mlp_biases;
    }
  }
  if (c.layer_scales) total += c.layers;
  if (c.feed_forward == FeedForward::kXielu) total += 2 * c.layers;
  if (c.layer_input > 0) {
    const int64_t inputs = c.layers * c.layer_input;
    total += (c.layer_input_vocab + c.hidden) * inputs + c.layer_input;
    total += 2 * c.hidden * inputs + c.layers * c.hidden;
  }
  total += c.vocab * c.embedding_dim * (c.tie_embeddings ? 1 : 2);
  if (c.final_norm) total += norm;
  if (opt) total += (c.max_context + 2) * c.hidden;
  if (c.embedding_dim != c.hidden) total += 2 * c.embedding_dim * c.hidden;
  return total;
}

}  // namespace

void ModelConfig::LimitContext(int64_t context) {
  if (static_cast<double>(context) > rope.original_context || rope.short_factors.empty()) return;
  rope.factors = rope.short_factors;
}

int64_t ModelConfig::rows_of(int64_t layer) const {
  if (!shares_rows(layer)) return layer;
  int64_t of = layers - shared_layers - 1;
  while (of >= 0 && has_window(of) != has_window(layer)) --of;
  return of;
}

void ModelConfig::KeepLayers(int64_t count) {
  shared_layers = std::max<int64_t>(0, count - (layers - shared_layers));
  layers = count;
  for (std::vector<bool>* of_layers : {&unrotated, &windowed, &recurrent, &experts.dense}) {
    if (of_layers->empty()) continue;
    of_layers->resize(static_cast<size_t>(count));
    if (std::ranges::count(*of_layers, true) == 0) of_layers->clear();
  }
}

int64_t ModelConfig::parameters() const { return CountParameters(*this, experts.own_count()); }
int64_t ModelConfig::active_parameters() const { return CountParameters(*this, experts.active); }

ModelConfig ModelConfig::FromModel(const std::filesystem::path& model) {
  if (!io::IsGguf(model)) {
    const std::filesystem::path file = model / "config.json";
    ModelConfig config = FromJson(io::ReadTextFile(file), file.string());
    // As in Transformers from version 5 on: what the weights say wins.
    if (config.tie_embeddings) config.tie_embeddings = !HasHeadOfItsOwn(model);
    return config;
  }
  const io::Checkpoint checkpoint(model);
  ModelConfig config = ParseConfig(ConfigJsonOfGguf(checkpoint), model.string());
  AddGgufFields(checkpoint, &config);
  return config;
}

ModelConfig ModelConfig::FromJson(const std::string& text, const std::string& name) {
  return ParseConfig(io::ParseJson(text, name), name);
}

nlohmann::json InnerTextConfig(const nlohmann::json& document, const char* architecture) {
  nlohmann::json text = document.value("text_config", document);
  if (!text.is_object()) return document;
  text["architectures"] = {architecture};
  for (const char* key : {"dtype", "torch_dtype", "eos_token_id", "bos_token_id",
                          "tie_word_embeddings", "quantization_config"}) {
    if (document.contains(key)) text[key] = document[key];
  }
  return text;
}

void ParseRmsFamily(const io::JsonFields& fields, ModelConfig& config,
                    const FamilyDefaults& defaults) {
  // Where all layers have experts, theirs may be the only width.
  constexpr const char *kWidth = "intermediate_size", *kExpertWidth = "moe_intermediate_size";
  const bool only_experts = !fields.Has(kWidth) && fields.Has(kExpertWidth);
  config.intermediate = fields.RequiredInt(only_experts ? kExpertWidth : kWidth, 1, kMaxWidth);
  config.kv_heads = fields.Int("num_key_value_heads", 1, kMaxHeads).value_or(config.q_heads);
  if (config.q_heads % config.kv_heads != 0) {
    fields.Fail("num_key_value_heads",
                fmt::format("must divide num_attention_heads = {}", config.q_heads));
  }
  const int64_t head_dim = fields.IsNull("head_dim") ? 0 : defaults.head_dim;
  config.head_dim = fields.Int("head_dim", 2, kMaxHeadDim).value_or(head_dim);
  if (config.head_dim == 0) {
    if (config.hidden % config.q_heads != 0) {
      fields.Fail("hidden_size",
                  fmt::format("must be a multiple of num_attention_heads = {} where no head_dim is "
                              "given",
                              config.q_heads));
    }
    config.head_dim = config.hidden / config.q_heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim < 2 || config.head_dim > kMaxHeadDim) {
    throw FileError("{}: head_dim = {}: must be even and from 2 to {}", fields.name(),
                    config.head_dim, kMaxHeadDim);
  }
  config.embedding_dim = config.hidden;
  config.max_context = fields.RequiredInt("max_position_embeddings", 1, kMaxContext);
  config.norm_eps = fields.Number("rms_norm_eps", 0, 1).value_or(defaults.norm_eps);
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(false);
  if (config.feed_forward == FeedForward::kGated) {
    const std::string activation = fields.String("hidden_act").value_or("silu");
    if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") {
      config.gate_function = ops::kGeluTanh;
    } else if (activation != "silu" && activation != "swish") {
      fields.Refuse("hidden_act", "silu and gelu_pytorch_tanh are supported");
    }
  }
  config.rope = ParseRope(fields, config.max_context, defaults.layer_type, defaults.theta);
  if (config.rope.scaling == RopeScaling::kNtkAlpha && config.family != Family::kHunYuan) {
    fields.Refuse(fields.Has("rope_scaling") ? "rope_scaling" : "rope_parameters",
                  "dynamic is supported only for HunYuan, with alpha");
  }
  ParseRotaryShare(fields, defaults.rotary_share, config);
  config.max_context = StretchedContext(config.rope, config.max_context);
}

void ParseUngated(const io::JsonFields& fields, const char* activation, FeedForward feed_forward,
                  ModelConfig& config) {
  if (fields.String("hidden_act").value_or(activation) != activation) {
    fields.Refuse("hidden_act",
                  fmt::format("{} is supported only with {}", config.architecture, activation));
  }
  config.feed_forward = feed_forward;
}

std::optional<std::vector<std::string>> ParseLayerTypes(const io::JsonFields& fields,
                                                        const ModelConfig& config) {
  auto types = fields.Strings("layer_types");
  if (types && static_cast<int64_t>(types->size()) != config.layers) {
    fields.Fail("layer_types", fmt::format("must have {} elements", config.layers));
  }
  return types;
}

void ParseWindows(const io::JsonFields& fields, ModelConfig& config,
                  const std::function<bool(int64_t layer)>& by_default, int64_t default_window) {
  auto window = fields.Int("sliding_window", 1, kMaxContext);
  if (!window && !fields.IsNull("sliding_window") && default_window > 0) window = default_window;
  const auto types = ParseLayerTypes(fields, config);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    bool windowed = by_default(layer);
    if (types) {
      const std::string& type = (*types)[static_cast<size_t>(layer)];
      windowed = type == "sliding_attention";
      if (!windowed && type != "full_attention") {
        fields.Refuse(
            "layer_types",
            fmt::format("{} layers; full_attention and sliding_attention are supported", type));
      }
    }
    config.windowed.push_back(windowed);
  }
  const bool any = std::ranges::count(config.windowed, true) > 0;
  if (any && types && !window)
    fields.Fail("sliding_window", "is missing, but layer_types needs it");
  if (!any || !window || (*window >= config.max_context && !config.window_rope)) {
    config.windowed.clear();
    return;
  }
  config.window = std::min(*window, config.max_context);
  if (config.window > kMaxWidth) {
    fields.Refuse("sliding_window", fmt::format("windows of up to {} tokens are", kMaxWidth));
  }
}

void ParseWindows(const io::JsonFields& fields, ModelConfig& config, int64_t default_window) {
  ParseWindows(
      fields, config, [](int64_t) { return true; }, default_window);
}

ExpertConfig ParseExperts(const io::JsonFields& fields, const char* count_field,
                          const char* width_field, const char* active_field) {
  ExpertConfig experts;
  experts.stacked = true;
  constexpr const char* kNewer = "num_local_experts";
  const char* const field = fields.Has(kNewer) ? kNewer : count_field;
  experts.count = fields.RequiredInt(field, 1, ops::kMostExperts);
  experts.active = fields.RequiredInt(active_field, 1, ops::kMostActiveExperts);
  experts.intermediate = fields.RequiredInt(width_field, 1, kMaxWidth);
  if (experts.count * experts.intermediate > kMaxWidth) {
    fields.Fail(width_field,
                fmt::format("times {} = {} must be at most {}", field, experts.count, kMaxWidth));
  }
  if (experts.active > experts.count) {
    fields.Fail(active_field, fmt::format("must be at most {} = {}", field, experts.count));
  }
  return experts;
}

void ParseSharedExperts(const io::JsonFields& fields, const char* count_field,
                        int64_t default_count, ExpertConfig* experts) {
  const int64_t count = fields.Int(count_field, 0, ops::kMostActiveExperts).value_or(default_count);
  experts->shared = count * experts->intermediate;
  if (experts->shared > kMaxWidth) {
    fields.Fail(count_field, fmt::format("experts together are wider than {}", kMaxWidth));
  }
  experts->shared_module = "shared_experts";
  experts->shared_gate = false;
}

void RefuseSlidingLayers(const io::JsonFields& fields) {
  const nlohmann::json* types = fields.Find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) fields.Fail("layer_types", "must be a list");
  for (const nlohmann::json& type : *types) {
    if (type != "full_attention") {
      fields.Refuse(
          "layer_types",
          fmt::format("{} layers; only layers that attend the whole context are supported",
                      io::Excerpt(type)));
    }
  }
}

}  // namespace litecache::model
