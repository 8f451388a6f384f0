#include "cli/config_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/units.h"

namespace litecache::cli {
namespace {

std::string_view Name(model::RopeScaling scaling) {
  switch (scaling) {
    case model::RopeScaling::kNone:
      return "none";
    case model::RopeScaling::kLinear:
      return "linear";
    case model::RopeScaling::kLlama3:
      return "llama3";
    case model::RopeScaling::kYarn:
      return "yarn";
    case model::RopeScaling::kLongRope:
      return "longrope";
    case model::RopeScaling::kFactors:
      return "factors";
    case model::RopeScaling::kProportional:
      return "proportional";
    case model::RopeScaling::kNtkAlpha:
      return "alpha";
  }
  return "none";
}

std::string Count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.2f} billion", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f} million", value / 1e6);
  return fmt::format("{}", count);
}

}  // namespace

nlohmann::ordered_json ConfigJson(const model::ModelConfig& c) {
  nlohmann::ordered_json json = {{"family", model::Name(c.family)},
                                 {"architecture", c.architecture},
                                 {"parameters", c.parameters()},
                                 {"weight_dtype", litecache::Name(c.weight_dtype)},
                                 {"layers", c.layers},
                                 {"hidden", c.hidden},
                                 {"intermediate", c.intermediate},
                                 {"q_heads", c.q_heads},
                                 {"kv_heads", c.kv_heads},
                                 {"head_dim", c.head_dim},
                                 {"vocab", c.vocab},
                                 {"max_context", c.max_context},
                                 {"tied_embeddings", c.tie_embeddings},
                                 {"eos_ids", c.eos_ids}};
  if (c.family == model::Family::kOpt) {
    json["positions"] = "learned";
  } else {
    json["rope"] = {
        {"theta", c.rope.theta}, {"scaling", Name(c.rope.scaling)}, {"factor", c.rope.factor}};
  }
  if (const model::ExpertConfig& e = c.experts; e.count > 0) {
    json["experts"] = {{"count", e.count},
                       {"active", e.active},
                       {"intermediate", e.intermediate},
                       {"active_parameters", c.active_parameters()}};
  }
  if (!c.windowed.empty()) {
    json["windows"] = {{"tokens", c.window}, {"layers", std::ranges::count(c.windowed, true)}};
    if (c.window_head_dim > 0) {
      json["windows"]["kv_heads"] = c.window_kv_heads;
      json["windows"]["head_dim"] = c.window_head_dim;
    }
  }
  if (!c.recurrent.empty()) {
    json["states"] = {{"layers", std::ranges::count(c.recurrent, true)},
                      {"bytes", c.kv_layout(DType::kBF16).state_bytes()}};
  }
  return json;
}

std::string ConfigText(const model::ModelConfig& c) {
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<14}{}\n", name, value);
  };
  text += fmt::format("{} ({}), {} parameters, {}\n", model::Name(c.family), c.architecture,
                      Count(c.parameters()), litecache::Name(c.weight_dtype));
  line("layers", fmt::format("{}", c.layers));
  const model::ExpertConfig& e = c.experts;
  line("hidden", fmt::format("{}, feed-forward {}{}", c.hidden,
                             e.count > 0 && !e.beside ? e.intermediate : c.intermediate,
                             e.beside ? fmt::format(", experts {}", e.intermediate) : ""));
  if (e.count > 0) {
    line("experts", fmt::format("{} of {} for each token, {} parameters", e.active, e.count,
                                Count(c.active_parameters())));
  }
  line("heads",
       fmt::format("{} query, {} key/value, dimension {}", c.q_heads, c.kv_heads, c.head_dim));
  line("vocabulary", fmt::format("{}{}", c.vocab, c.tie_embeddings ? ", tied embeddings" : ""));
  line("context", fmt::format("{} tokens", c.max_context));
  if (c.family == model::Family::kOpt) {
    line("positions", "learned");
  } else {
    line("RoPE",
         fmt::format("theta {}, scaling {}{}", c.rope.theta, Name(c.rope.scaling),
                     c.rope.scaling == model::RopeScaling::kNone ||
                             c.rope.scaling == model::RopeScaling::kFactors || c.rope.factor == 1
                         ? ""
                         : fmt::format(" by {}", c.rope.factor)));
  }
  if (!c.windowed.empty()) {
    line("windows", fmt::format("{} layers attend the last {} tokens",
                                std::ranges::count(c.windowed, true), c.window));
    if (c.window_head_dim > 0) {
      line("", fmt::format("{} key/value heads there, dimension {}", c.window_kv_heads,
                           c.window_head_dim));
    }
  }
  if (!c.recurrent.empty()) {
    line("states", fmt::format("{} layers keep a state instead of rows, {} a sequence",
                               std::ranges::count(c.recurrent, true),
                               FormatBytes(c.kv_layout(DType::kBF16).state_bytes())));
  }
  return text;
}

}  // namespace litecache::cli
