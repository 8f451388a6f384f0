// JSON lines: files with one JSON object per line.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace litecache::eval {

struct JsonLine {
  nlohmann::json value;
  int64_t line;       // counted from 1
  std::string where;  // "FILE:LINE", the prefix of messages
};

// Calls `each` for every line that is not blank. Throws FileError "FILE:LINE:COLUMN: ..." for
// malformed JSON, and for values nested so deeply that copying or printing them would overflow the
// stack. `name` is the file's path in messages.
void ForEachJsonLine(std::string_view text, const std::string& name,
                     const std::function<void(JsonLine)>& each);

// Only the nesting check, for a whole JSON text. Throws FileError.
void CheckNesting(std::string_view json, const std::string& where);

}  // namespace litecache::eval
