// JSON of requests and answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace litecache::server {

// Keeps the order of keys: templates print tool schemas as they were written.
using Json = nlohmann::ordered_json;

// Throws ApiError 400 for what is not JSON, nests deeper than 128 levels (what walks a document
// recursively must not run out of stack), or is no object.
Json ParseBody(std::string_view body);

// One line. Invalid UTF-8 becomes U+FFFD.
std::string Dump(const Json& value);

// A value for a message, shortened.
std::string Excerpt(const Json& value);

}  // namespace litecache::server
