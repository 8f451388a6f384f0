// JSON lines: files with one JSON object a line.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace litecache::eval {

struct JsonLine {
  nlohmann::json value;
  int64_t line;       // from 1
  std::string where;  // "FILE:LINE", what messages start with
};

// Calls `each` for every line that is not blank. Throws FileError "FILE:LINE:COLUMN: ..." for
// malformed JSON, and for values nested so deeply that copying or printing them would overflow the
// stack. `name` stands for the file's path.
void ForEachJsonLine(std::string_view text, const std::string& name,
                     const std::function<void(JsonLine)>& each);

// The check of nesting alone, for a whole JSON text. Throws FileError.
void CheckNesting(std::string_view json, const std::string& where);

}  // namespace litecache::eval
