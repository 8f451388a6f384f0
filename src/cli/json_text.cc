#include "cli/json_text.h"

#include <fmt/core.h>

#include <cmath>
#include <iterator>

namespace litecache::cli {

std::string ToJsonLine(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void AppendJsonFloat(float value, std::string* out) {
  if (std::isfinite(value)) {
    *out += fmt::format("{}", value);
  } else {
    *out += "null";
  }
}

}  // namespace litecache::cli
