#include "model/gguf_families.h"

#include <fmt/core.h>

#include <string>
#include <vector>

#include "io/gguf.h"

namespace litecache::model {
namespace {

using nlohmann::json;

constexpr std::string_view kApertus = "apertus", kArcee = "arcee", kCommandR = "command-r",
                           kCohere2 = "cohere2", kHunYuan = "hunyuan-dense", kNemotron = "nemotron",
                           kMistral3 = "mistral3", kStarcoder2 = "starcoder2";

// A number of each layer, or one for all.
std::vector<float> OfLayers(const io::Gguf& gguf, const char* key, int64_t layers) {
  if (!gguf.HasArray(key)) {
    const auto value = static_cast<float>(gguf.fields().RequiredNumber(key, -1e6, 1e6));
    return std::vector<float>(static_cast<size_t>(layers), value);
  }
  std::vector<float> values = gguf.Floats(key);
  if (static_cast<int64_t>(values.size()) != layers) {
    gguf.fields().Fail(key, fmt::format("must have {} elements", layers));
  }
  for (const float value : values) {
    if (!(value >= -1e6f && value <= 1e6f)) {
      gguf.fields().Fail(key, "must be numbers from -1e6 to 1e6");
    }
  }
  return values;
}

std::vector<ops::XieluFunction> XieluOfGguf(const io::Gguf& gguf, int64_t layers) {
  const std::vector<float> positive = OfLayers(gguf, "xielu.alpha_p", layers);
  const std::vector<float> negative = OfLayers(gguf, "xielu.alpha_n", layers);
  const std::vector<float> beta = OfLayers(gguf, "xielu.beta", layers);
  const std::vector<float> epsilon = OfLayers(gguf, "xielu.eps", layers);
  std::vector<ops::XieluFunction> functions;
  for (size_t i = 0; i < positive.size(); ++i) {
    functions.push_back(ops::XieluFunction::Of(positive[i], negative[i], beta[i], epsilon[i]));
  }
  return functions;
}

}  // namespace

json FamilyFieldsOfGguf(const io::Checkpoint& checkpoint, const ArchitectureKeys& keys) {
  const std::string_view name = keys.architecture();
  const auto has = [&](const char* tensor) { return checkpoint.Find(tensor).info != nullptr; };
  const double epsilon = keys.Number("attention.layer_norm_epsilon").value_or(1e-5);
  const bool up_bias = has("model.layers.0.mlp.up_proj.bias");
  json config = json::object();
  if (name == kArcee) config = {{"mlp_bias", up_bias}};
  if (name == kNemotron) config = {{"norm_eps", epsilon}, {"mlp_bias", up_bias}};
  if (name == kStarcoder2) config = {{"norm_epsilon", epsilon}, {"use_bias", up_bias}};
  // Apertus' frequencies are divided by a tensor's factors, if at all.
  if (name == kApertus || name == kMistral3) {
    config = {{"rope_parameters", {{"rope_type", "default"}}}};
  }
  if (name == kCommandR || name == kCohere2) {
    constexpr const char* kScale = "logit_scale";
    const auto scale = keys.Number(kScale);
    if (!scale) keys.Fail(kScale, "is missing");
    config = {{"layer_norm_eps", epsilon},
              {kScale, *scale},
              {"use_qk_norm", has("model.layers.0.self_attn.q_norm.weight")}};
  }
  return config;
}

void AddFamilyFields(const io::Checkpoint& checkpoint, std::string_view architecture,
                     ModelConfig* config) {
  const NormNames names;
  if (architecture == kApertus) {
    config->norms = names;
    config->xielu = XieluOfGguf(*checkpoint.gguf(), config->layers);
  } else if (architecture == kHunYuan) {
    config->norms = names;
  } else if (architecture == kNemotron) {
    config->norm_added = 0;  // 1 has been added
  } else if (architecture == kStarcoder2) {
    const ModelConfig common;
    config->up = common.up;
    config->down = common.down;
  }
}

}  // namespace litecache::model
