// Answers of /v1/responses.
#pragma once

#include <memory>

#include "server/api/answer.h"
#include "server/api/tools.h"

namespace litecache::server {

// `echo`: the fields of the request that the response repeats.
std::unique_ptr<AnswerFormat> ResponsesAnswer(const ServedModel& model, const StreamOptions& stream,
                                              Json echo, const ToolUse& tools);

}  // namespace litecache::server
