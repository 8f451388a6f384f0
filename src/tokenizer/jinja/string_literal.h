// String literals of the template language.
#pragma once

#include <string>
#include <string_view>

namespace litecache::tokenizer::jinja {

// \r\n and \r become \n.
std::string NormalizeNewlines(std::string_view text);

// Resolves the backslash escapes of the text between the quotes, as Python's unicode_escape does.
// Sets *error for a malformed escape.
std::string Unescape(std::string_view body, std::string* error);

}  // namespace litecache::tokenizer::jinja
