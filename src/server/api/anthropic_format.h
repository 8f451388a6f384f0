// Answers as Anthropic's API has them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/answer.h"
#include "server/api/tools.h"

namespace litecache::server {

// Of one answer: `stops` are the request's stop strings, one of which an answer may name as what
// ended it.
std::unique_ptr<AnswerFormat> AnthropicAnswer(const ServedModel& model, const StreamOptions& stream,
                                              const ToolUse& tools, int64_t prompt_tokens,
                                              std::vector<std::string> stops);

}  // namespace litecache::server
