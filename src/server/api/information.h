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

// /slots as in llama.cpp's server: the sequences that the engine can decode at once, and which of
// them are in use.
Json SlotsJson(const ServedModel& model);

// Answer the bodies of /tokenize, /detokenize and /apply-template. They throw ApiError.
Json TokenizeJson(const Json& body, const ServedModel& model);
Json DetokenizeJson(const Json& body, const ServedModel& model);
Json ApplyTemplateJson(const Json& body, const ServedModel& model);

}  // namespace litecache::server
