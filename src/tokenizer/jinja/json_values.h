// Conversion between JSON and template values.
#pragma once

#include <nlohmann/json.hpp>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// `input` marks every string, including keys, as input. Throws InvalidArgument for invalid UTF-8,
// integers over 64 bits, and nesting beyond the limit.
Value FromJson(Runtime& rt, const nlohmann::ordered_json& json, bool input);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // text of one level; nullopt: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// json.dumps(). Fails for values that JSON cannot represent.
MarkedString ToJson(Runtime& rt, const Value& value, const JsonStyle& style);

}  // namespace litecache::tokenizer::jinja
