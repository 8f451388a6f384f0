#include "cli/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace litecache::cli {

std::string ToJsonLine(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void AppendJsonFloat(float value, std::string* out) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(*out), "{}", value);
  } else {
    *out += "null";
  }
}

}  // namespace litecache::cli
