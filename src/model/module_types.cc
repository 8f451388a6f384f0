#include "model/module_types.h"

#include "base/error.h"

namespace litecache::model {

ModuleTypes ModuleTypes::Parse(std::string_view text) {
  ModuleTypes types;
  for (bool first = true; !text.empty() || first; first = false) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
    if (first) {
      types.type = item;
      continue;
    }
    const size_t equals = item.find('=');
    if (equals == item.npos || equals == 0) {
      throw InvalidArgument("'{}' is not MODULE=TYPE, such as v_proj=none", item);
    }
    types.modules.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return types;
}

std::string_view ModuleTypes::Of(std::string_view module) const {
  if (IsNeverQuantized(module)) return "none";
  for (const auto& [of, other] : modules) {
    if (of == module) return other;
  }
  return module == "lm_head" || module == "embed_tokens" ? "none" : std::string_view(type);
}

bool IsNeverQuantized(std::string_view module) {
  // proj: of Gemma 4's router, whose name is router.proj.
  return module == "embed_positions" || module == "gate" || module == "router" ||
         module == "proj" || module == "shared_expert_gate" || module == "in_proj_a" ||
         module == "in_proj_b";
}

}  // namespace litecache::model
