// What a request to /v1/chat/completions says; other APIs are rewritten as such requests.
#pragma once

#include "server/api/answer.h"
#include "server/api/fields.h"
#include "server/api/tools.h"

namespace litecache::server {

struct ChatJob {
  GenerationJob job;  // of one request; its format is the caller's to make
  ToolUse tools;
};

// Reads all fields and encodes the prompt. Throws ApiError and what tokenizer and template throw.
ChatJob ReadChatFields(Fields& fields, const ServedModel& model);

}  // namespace litecache::server
