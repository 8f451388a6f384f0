// Values that models write as literals of Python.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace litecache::server {

// The literal as JSON: None, True, False, numbers, strings, lists, tuples, dicts with strings as
// keys. Nothing for other texts, or beyond JsonLimits::OfRequest().
std::optional<std::string> JsonOfPython(std::string_view literal);

// The size of the string literal that the text begins with, quotes included; unset: its end is
// missing, or there is none.
std::optional<size_t> PythonStringSize(std::string_view text);

}  // namespace litecache::server
