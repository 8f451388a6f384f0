// Escapes text for HTML, SVG and XML.
#pragma once

#include <string>
#include <string_view>

namespace litecache {

// Writes & < > and " as entities: for text and for attributes in double quotes.
std::string EscapeMarkup(std::string_view text);

}  // namespace litecache
