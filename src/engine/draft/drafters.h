// What EngineOptions::draft asks for.
#pragma once

#include <string>
#include <string_view>

namespace litecache::engine {

struct Drafters {
  bool lookup = false;
  bool sparse = false;
  std::string model;  // the draft model; empty: none
  bool any() const { return lookup || sparse || !model.empty(); }
};

// Throws InvalidArgument, which names the option as `name`, for a combination that there is not.
Drafters ParseDrafters(const std::string& draft, std::string_view name = "draft");

}  // namespace litecache::engine
