#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "model/config_fields.h"

namespace litecache::model {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

double Positive(const io::JsonFields& fields, std::string_view key, double high, double fallback) {
  return fields.Number(key, 1e-6, high).value_or(fallback);
}

// Finds the parameters: `rope_scaling` wins, as in Transformers; an empty object counts as absent.
std::optional<io::JsonFields> FindParameters(const io::JsonFields& fields) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = fields.Find(key);
    if (value != nullptr && !(value->is_object() && value->empty())) return fields.Object(key);
  }
  return std::nullopt;
}

void ParseYarn(const io::JsonFields& parameters, int64_t max_positions, RopeConfig& rope) {
  // A null factor means the ratio of the two contexts (DeepSeek's configs).
  rope.factor = Positive(parameters, "factor", kMaxFactor,
                         static_cast<double>(max_positions) / rope.original_context);
  const auto attention_factor = parameters.Number("attention_factor", 1e-6, 1e6);
  rope.attention_factor = attention_factor.value_or(0);
  // Zero means the default here, because Transformers uses `or`.
  const auto or_default = [&](std::string_view key, double fallback) {
    const double value = parameters.Number(key, 0, 1e6).value_or(0);
    return value == 0 ? fallback : value;
  };
  rope.beta_fast = or_default("beta_fast", 32);
  rope.beta_slow = or_default("beta_slow", 1);
  rope.mscale = or_default("mscale", 0);
  rope.mscale_all_dim = or_default("mscale_all_dim", 0);
  rope.truncate = parameters.Bool("truncate").value_or(true);
  if (rope.theta <= 1) parameters.Fail("rope_theta", "must be above 1 for yarn");
}

void ParseLlama3(const io::JsonFields& parameters, RopeConfig& rope) {
  rope.factor = parameters.RequiredNumber("factor", 1e-6, kMaxFactor);
  rope.low_freq_factor = parameters.RequiredNumber("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = parameters.RequiredNumber("high_freq_factor", 1e-6, kMaxFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    parameters.Fail("high_freq_factor",
                    fmt::format("must be above low_freq_factor = {}", rope.low_freq_factor));
  }
}

// A divisor for each frequency.
std::vector<float> LongRopeFactors(const io::JsonFields& parameters, std::string_view key) {
  const nlohmann::json* list = parameters.Find(key);
  if (list == nullptr || !list->is_array()) {
    parameters.Fail(key, "must be a list of numbers, one for each frequency");
  }
  std::vector<float> factors;
  for (const nlohmann::json& item : *list) {
    const double factor = item.is_number() ? item.get<double>() : 0;
    if (!(factor >= 1e-6 && factor <= kMaxFactor)) {
      parameters.Fail(key, fmt::format("must be numbers from 1e-6 to {:g}", kMaxFactor));
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

void ParseLongRope(const io::JsonFields& parameters, int64_t max_positions, RopeConfig& rope) {
  rope.factors = LongRopeFactors(parameters, "long_factor");
  rope.short_factors = LongRopeFactors(parameters, "short_factor");
  rope.factor = Positive(parameters, "factor", kMaxFactor,
                         static_cast<double>(max_positions) / rope.original_context);
  rope.attention_factor = Positive(parameters, "attention_factor", 1e6, 0);
  if (rope.original_context < 2) {
    parameters.Fail("original_max_position_embeddings", "must be above 1 for longrope");
  }
}

}  // namespace

RopeConfig ParseRope(const io::JsonFields& fields, int64_t max_positions,
                     std::string_view layer_type, double default_theta) {
  RopeConfig rope;
  rope.theta = Positive(fields, "rope_theta", kMaxTheta, default_theta);
  auto parameters = FindParameters(fields);
  if (!parameters) return rope;

  for (const std::string_view type : {"full_attention", "sliding_attention"}) {
    if (!parameters->Has(type)) continue;
    if (layer_type.empty()) {
      parameters->Refuse(type, "all layers share one set of RoPE parameters");
    }
    if (!parameters->Has(layer_type)) return rope;
    parameters = parameters->Object(layer_type);
    break;
  }
  rope.theta = Positive(*parameters, "rope_theta", kMaxTheta, rope.theta);
  const char* type_key = parameters->Has("rope_type") ? "rope_type" : "type";
  const std::string type = parameters->String(type_key).value_or("default");
  rope.original_context = static_cast<double>(max_positions);
  for (const io::JsonFields* place : {&fields, std::as_const(parameters).operator->()}) {
    // The top-level field comes first, as in Transformers.
    if (const auto value = place->Int("original_max_position_embeddings", 1, kMaxContext)) {
      rope.original_context = static_cast<double>(*value);
      break;
    }
  }

  // mrope: a token of an image has three positions, one of text the same three times.
  if (type == "default" || (type == "mrope" && parameters->Has("mrope_section"))) {
    rope.original_context = 0;
  } else if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = parameters->RequiredNumber("factor", 1e-6, kMaxFactor);
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    ParseLlama3(*parameters, rope);
  } else if (type == "longrope" || type == "su" ||
             (type == "yarn" && parameters->Has("long_factor"))) {  // old names
    rope.scaling = RopeScaling::kLongRope;
    ParseLongRope(*parameters, max_positions, rope);
  } else if (type == "proportional" && !layer_type.empty()) {
    rope.original_context = 0;
    rope.scaling = RopeScaling::kProportional;
    rope.factor = Positive(*parameters, "factor", kMaxFactor, 1);
    rope.rotated_share = parameters->Number("partial_rotary_factor", 0, 1).value_or(1);
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    ParseYarn(*parameters, max_positions, rope);
  } else if (type == "dynamic" && parameters->Has("alpha")) {
    rope.original_context = 0;
    rope.scaling = RopeScaling::kNtkAlpha;
    rope.factor = parameters->RequiredNumber("alpha", 1e-6, kMaxFactor);
  } else {
    parameters->Refuse(type_key,
                       "default, linear, llama3, yarn, longrope and proportional are supported");
  }
  return rope;
}

bool HasRopeParameters(const io::JsonFields& fields) { return FindParameters(fields).has_value(); }

RopeConfig ParseWindowRope(const io::JsonFields& fields, int64_t max_positions,
                           double default_theta) {
  const auto parameters = fields.Object("rope_parameters");
  if (parameters && parameters->Has("sliding_attention")) {
    return ParseRope(fields, max_positions, "sliding_attention", default_theta);
  }
  RopeConfig rope;
  rope.theta = default_theta;
  return rope;
}

void ParseQueryGrowth(const io::JsonFields& fields, RopeConfig& rope) {
  constexpr const char* kKey = "llama_4_scaling_beta";
  const auto parameters = FindParameters(fields);
  if (!parameters) return;
  rope.query_growth = parameters->Number(kKey, 0, 1e3).value_or(0);
  if (rope.query_growth != 0 && rope.original_context == 0) {
    parameters->Fail(kKey, "needs original_max_position_embeddings and a rope_type that has it");
  }
}

void ParseRotaryShare(const io::JsonFields& fields, std::optional<double> default_share,
                      ModelConfig& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  const auto parameters = FindParameters(fields);
  const io::JsonFields& place = parameters && parameters->Has(kKey) ? *parameters : fields;
  const auto share = place.Number(kKey, 0, 1e3);
  if (!default_share) {
    if (share && *share != 1.0) {
      place.Refuse(kKey, "only 1.0 is supported, which rotates whole heads");
    }
    return;
  }
  config.rotary_dim =
      static_cast<int64_t>(static_cast<double>(config.head_dim) * share.value_or(*default_share));
  if (config.rotary_dim < 2 || config.rotary_dim > config.head_dim || config.rotary_dim % 2 != 0) {
    place.Fail(kKey, fmt::format("must leave an even number of a head's {} dimensions to rotate",
                                 config.head_dim));
  }
}

void CheckLongRope(const io::JsonFields& fields, const ModelConfig& config) {
  const auto pairs = static_cast<size_t>(config.rotated() / 2);
  const char* const key = fields.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  for (const RopeConfig* rope :
       {&config.rope, config.window_rope ? &*config.window_rope : nullptr}) {
    if (rope == nullptr || rope->scaling != RopeScaling::kLongRope) continue;
    if (rope->factors.size() != pairs || rope->short_factors.size() != pairs) {
      fields.Fail(key,
                  fmt::format("long_factor and short_factor must have {} elements, one for each "
                              "pair of rotated dimensions",
                              pairs));
    }
  }
}

int64_t StretchedContext(const RopeConfig& rope, int64_t max_positions) {
  // Published configs leave max_position_embeddings at the pretraining length (Qwen 2.5's yarn,
  // Vicuna's linear); llama3 configs state the stretched one.
  double context = static_cast<double>(max_positions);
  if (rope.scaling == RopeScaling::kLinear) context *= rope.factor;
  if (rope.scaling == RopeScaling::kYarn) {
    context = std::max(context, rope.original_context * rope.factor);
  }
  return std::clamp(static_cast<int64_t>(std::min(context, 1e12)), max_positions, kMaxContext);
}

}  // namespace litecache::model
