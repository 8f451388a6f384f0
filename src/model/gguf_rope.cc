#include "model/gguf_rope.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/block_format.h"
#include "base/error.h"
#include "model/config_fields.h"

namespace litecache::model {
namespace {

using nlohmann::json;

constexpr const char* kType = "rope.scaling.type";
constexpr const char *kFactor = "rope.scaling.factor", *kOldFactor = "rope.scale_linear";
constexpr const char* kFactors = "rope_freqs.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";
constexpr const char* kShortFactors = "rope_factors_short.weight";

// A factor of this size leaves a pair of dimensions as it is at any position.
constexpr float kUnrotated = 1e20f;

// A tensor of factors, one for each frequency; none: there is no such tensor. count: how many; 0:
// any number. most: the largest that a factor may be.
std::optional<std::vector<float>> ReadFactors(const io::Checkpoint& checkpoint, const char* name,
                                              int64_t count = 0, float most = 1e6f) {
  const io::Checkpoint::Tensor tensor = checkpoint.Find(name);
  if (tensor.info == nullptr) return std::nullopt;
  const std::vector<int64_t>& shape = tensor.info->shape;
  if (tensor.info->dtype != "F32" || shape.size() != 1 || shape[0] > kMaxHeadDim ||
      (count != 0 && shape[0] != count)) {
    throw FileError("{}: tensor '{}' is {}, but F32 [{}] is expected", tensor.file->string(), name,
                    tensor.info->ToString(), count == 0 ? "frequencies" : std::to_string(count));
  }
  std::vector<float> factors(static_cast<size_t>(shape[0]));
  FindBlockFormat("F32")->to_float(tensor.data, shape[0], factors.data());
  for (const float factor : factors) {
    if (!(factor >= 1e-6f && factor <= most)) {
      throw FileError("{}: tensor '{}' holds {}, and RoPE's factors are from 1e-6 to {:g}",
                      tensor.file->string(), name, factor, most);
    }
  }
  return factors;
}

// Null: the file has no such factors.
json LongRopeJson(const io::Checkpoint& checkpoint, const ArchitectureKeys& keys) {
  auto of_long = ReadFactors(checkpoint, kLongFactors);
  auto of_short = ReadFactors(checkpoint, kShortFactors);
  if (!of_long && !of_short) return {};
  if (!of_long || !of_short) {
    throw FileError("{}: has only one of the tensors '{}' and '{}'", checkpoint.path().string(),
                    kLongFactors, kShortFactors);
  }
  return {{"rope_type", "longrope"},
          {"long_factor", std::move(*of_long)},
          {"short_factor", std::move(*of_short)},
          {"attention_factor", keys.Number("rope.scaling.attn_factor").value_or(1)}};
}

// The share of a head that so many dimensions are.
double ShareOf(int64_t rotated, int64_t head_dim) {
  // Half a dimension more, so that their product, rounded down, is not one less.
  return std::min(1.0, (static_cast<double>(rotated) + 0.5) / static_cast<double>(head_dim));
}

// What a file says of YaRN beyond its factor.
void AddYarn(const ArchitectureKeys& keys, json* scaling) {
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    if (const auto value = keys.Number(fmt::format("rope.scaling.yarn_{}", beta))) {
      (*scaling)[beta] = *value;
    }
  }
  // Without it, and where it is 1, what llama.cpp derives is what Transformers computes.
  const double factor = keys.Number("rope.scaling.yarn_attn_factor").value_or(1);
  if (factor != 1) (*scaling)["attention_factor"] = factor;
  if (keys.architecture() != "mistral3") return;
  if (const auto mscale = keys.Number("rope.scaling.yarn_log_multiplier")) {
    (*scaling)["mscale"] = 1;
    (*scaling)["mscale_all_dim"] = *mscale;
  }
  if (const auto beta = keys.Number("attention.temperature_scale")) {
    (*scaling)["llama_4_scaling_beta"] = *beta;
  }
}

}  // namespace

json RopeScalingJsonOfGguf(const io::Checkpoint& checkpoint, const ArchitectureKeys& keys) {
  // 0 is as if it was missing.
  const double factor = keys.Number(kFactor).value_or(keys.Number(kOldFactor).value_or(0));
  // Files before types could only scale all positions.
  const std::string type = keys.String(kType).value_or(factor != 0 ? "linear" : "none");
  json scaling = LongRopeJson(checkpoint, keys);
  if (scaling.is_null()) {
    if (type == "longrope") {
      keys.Refuse(kType,
                  fmt::format("without the tensors '{}' and '{}'", kLongFactors, kShortFactors));
    }
    if (type == "none" || (type == "linear" && (factor == 0 || factor == 1))) {
      if (keys.Number("attention.temperature_scale").value_or(0) != 0) {
        keys.Refuse("attention.temperature_scale",
                    fmt::format("{} must be yarn", keys.Name(kType)));
      }
      return {};
    }
    // What llama.cpp derives without these keys is what Transformers computes.
    const bool mistral = keys.architecture() == "mistral3";
    for (const auto& [key, value] : {std::pair("rope.scaling.attn_factor", 1.0),
                                     {"rope.scaling.yarn_ext_factor", 1.0},
                                     {"rope.scaling.yarn_log_multiplier", 0.0}}) {
      if (mistral && value == 0) continue;
      if (keys.Number(key).value_or(value) != value) {
        keys.Refuse(key, fmt::format("only {} is supported", value));
      }
    }
    scaling = {{"rope_type", type}};
    if (factor != 0) scaling["factor"] = factor;
    AddYarn(keys, &scaling);
  }
  if (const int64_t original = keys.Int("rope.scaling.original_context_length", kMaxContext, 0)) {
    scaling["original_max_position_embeddings"] = original;
  }
  return scaling;
}

// rope.dimension_sections, of images, is of no concern: a token of text has the same position in
// all of them.
double RotatedShareOfGguf(const ArchitectureKeys& keys, int64_t head_dim) {
  constexpr const char* kRotated = "rope.dimension_count";
  const int64_t rotated = keys.Int(kRotated, kMaxHeadDim, head_dim);
  if (rotated < 2 || rotated > head_dim || rotated % 2 != 0) {
    keys.Fail(kRotated, fmt::format("must be an even number of a head's {} dimensions", head_dim));
  }
  return ShareOf(rotated, head_dim);
}

double ProportionalShareOfGguf(const io::Checkpoint& checkpoint, int64_t head_dim) {
  const auto factors =
      ReadFactors(checkpoint, kFactors, head_dim / 2, std::numeric_limits<float>::max());
  if (!factors) {
    throw FileError("{}: tensor '{}' is missing", checkpoint.path().string(), kFactors);
  }
  const auto end = std::ranges::find_if(*factors, [](float factor) { return factor != 1; });
  const auto other = std::find_if(end, factors->end(), [](float f) { return f < kUnrotated; });
  if (other != factors->end()) {
    throw Unsupported(
        "{}: tensor '{}' holds {} behind {}: factors must be 1 and then at least {:g}",
        checkpoint.path().string(), kFactors, *other, end - factors->begin(), kUnrotated);
  }
  return ShareOf(2 * (end - factors->begin()), head_dim);
}

void AddRopeFactors(const io::Checkpoint& checkpoint, ModelConfig* config) {
  if (config->rope.scaling == RopeScaling::kProportional) return;  // read above
  auto factors = ReadFactors(checkpoint, kFactors, config->rotated() / 2);
  if (!factors) return;
  RopeConfig& rope = config->rope;
  if (rope.scaling != RopeScaling::kNone) {
    throw Unsupported("{}: both rope.scaling.type and tensor '{}' scale the positions",
                      checkpoint.path().string(), kFactors);
  }
  rope.scaling = RopeScaling::kFactors;
  rope.factors = std::move(*factors);
}

}  // namespace litecache::model
