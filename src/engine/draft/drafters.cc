#include "engine/draft/drafters.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace litecache::engine {

Drafters ParseDrafters(const std::string& draft, std::string_view name) {
  constexpr std::string_view kLookup = "lookup", kBefore = "lookup,";
  Drafters drafters;
  if (draft == "off") return drafters;
  drafters.lookup = draft == kLookup || draft.starts_with(kBefore);
  if (draft == kLookup) return drafters;
  drafters.model = drafters.lookup ? draft.substr(kBefore.size()) : draft;
  if (drafters.model == "sparse") {
    drafters.sparse = true;
    drafters.model.clear();
    return drafters;
  }
  const std::string first = drafters.model.substr(0, drafters.model.find(','));
  constexpr std::array<std::string_view, 4> kNames = {"", "off", "lookup", "sparse"};
  if (std::ranges::find(kNames, first) != kNames.end()) {
    throw InvalidArgument(
        "{} {}: use off, lookup, sparse, lookup,sparse, or a draft model's directory or GGUF file, "
        "DIR or lookup,DIR (./{} for a directory of that name)",
        name, draft, drafters.model);
  }
  return drafters;
}

}  // namespace litecache::engine
