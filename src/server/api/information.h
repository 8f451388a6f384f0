// Endpoints that report information, and those of the tokenizer.
#pragma once

#include <string>

#include "server/api/json.h"
#include "server/api/model.h"

namespace litecache::server {

// An entry of /v1/models.
Json ModelJson(const ServedModel& model, const std::string& name);
// /props: model, KV policy, memory plan, limits.
Json PropsJson(const ServedModel& model);

// Answer the bodies of /tokenize and /detokenize. They throw ApiError.
Json TokenizeJson(const Json& body, const ServedModel& model);
Json DetokenizeJson(const Json& body, const ServedModel& model);

}  // namespace litecache::server
