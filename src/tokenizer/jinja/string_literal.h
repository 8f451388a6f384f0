// String literals of the template language.
#pragma once

#include <string>
#include <string_view>

namespace litecache::tokenizer::jinja {

// \r\n and \r become \n.
std::string NormalizeNewlines(std::string_view text);

// The text between the quotes with its backslash escapes resolved, as Python's unicode_escape does.
// On a malformed escape, sets *error.
std::string Unescape(std::string_view body, std::string* error);

}  // namespace litecache::tokenizer::jinja
