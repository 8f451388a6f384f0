// What the arguments of functions are by their schemas: in calls that do not quote strings
// (xml_calls.h), only that tells the text 5 from the number.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/api/json.h"

namespace litecache::server {

// The JSON types that an argument may have, by its name: {"string"}, {"integer", "null"}, ...
using ArgumentTypes = std::map<std::string, std::set<std::string>, std::less<>>;
// Those of every function, by its name.
using CallTypes = std::map<std::string, ArgumentTypes, std::less<>>;

// tools: in the form that chat templates read. Arguments whose schema is wrong or too complex are
// left out, as are those without a name in it.
CallTypes TypesOfCalls(const Json& tools);

// A value's text as JSON, which may be written as Python writes it; nothing if it is to be a
// string. JSON of another type is left for the client to refuse, unless the types allow it as a
// string.
std::optional<std::string> ReadValue(std::string_view text, const std::set<std::string>& types);

}  // namespace litecache::server
