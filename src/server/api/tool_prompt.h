// Rewrites conversations with calls of functions for chat templates that do not take them as they
// are.
#pragma once

#include "server/api/json.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

// For a template without tools. Messages are as ReadMessages() returns them.
// Calls of the assistant become text, <tool_call>{...}</tool_call>, and results become messages of
// the user, <tool_response>...</tool_response>.
void WriteCallsAsText(Json* messages);
// For a template that takes tools and results, but no calls: they become text as the model writes
// them.
void WriteCallsAsModels(ToolFormat format, Json* messages);
// Tells the model which functions it may call and how, in the system message. If there is none, one
// is added, or (system_role false) the first message of the user begins with it.
void ExplainTools(const Json& tools, bool system_role, Json* messages);

// For Mistral's templates, which refuse ids of calls that are not 9 letters and digits: gives such
// an id to each call and its result.
void ShortenCallIds(Json* messages);

// For Gemma's templates, which take results as part of the message with the calls, before the
// answer that follows them: {"tool_responses": [{"name", "response"}, ...]}. What was said before
// the calls becomes a message of its own.
void NestToolResults(Json* messages);

// For templates that write each argument of a call by itself: arguments that are no JSON object,
// as of a call that was cut off, become {"invalid_json": TEXT}.
void MakeArgumentsObjects(Json* messages);

}  // namespace litecache::server
