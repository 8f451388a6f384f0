// JSON of requests and answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/json_parser.h"

namespace litecache::server {

// Keeps the order of keys: templates print tool schemas as they were written.
using Json = nlohmann::ordered_json;

// Throws ApiError 400 if the body is not JSON, exceeds JsonLimits::OfRequest(), or is not an
// object.
Json ParseBody(std::string_view body);

// Parses JSON inside a string of the body, such as the arguments of a tool call: the same errors,
// which name the field and begin with `what`. limits->values is reduced to what is left for further
// strings.
Json ParseText(std::string_view text, const std::string& field, const std::string& what,
               io::JsonLimits* limits);

// One line. Invalid UTF-8 becomes U+FFFD.
std::string Dump(const Json& value);

// Part of a string in JSON. Bytes are kept: a character may be cut.
std::string Escaped(std::string_view text);

// For a log line: a client must not be able to start lines of its own or send control codes to a
// terminal. Shortened.
std::string Printable(std::string_view text);

// A value shortened for a message.
std::string Excerpt(const Json& value);

}  // namespace litecache::server
