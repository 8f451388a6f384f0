// The program's JSON output: always valid UTF-8, never NaN or Infinity.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace litecache::cli {

// One line without the newline. Invalid UTF-8 becomes U+FFFD; numbers that JSON cannot represent
// become null.
std::string ToJsonLine(const nlohmann::ordered_json& value);

// Appends the shortest text that reads back as the same float, or null.
void AppendJsonFloat(float value, std::string* out);

}  // namespace litecache::cli
