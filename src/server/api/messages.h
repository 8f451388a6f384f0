// Conversations: from the clients' format to that of chat templates.
#pragma once

#include <string>
#include <string_view>

#include "server/api/json.h"
#include "tokenizer/chat_template.h"

namespace litecache::server {

// Checks the array `messages` of a chat request and converts it for a template: "developer" becomes
// "system", text parts are joined with newlines, arguments of tool calls become objects. Parts that
// are not text are rejected. Throws an ApiError that names messages[i] and the field.
Json ReadMessages(const Json& messages);

// Whether `role` is one of system, developer, user, assistant, tool.
bool IsRole(std::string_view role);

// The text of a "content": a string, or parts of type "text" ("input_text", "output_text" in the
// responses API). `where` names it in errors.
std::string ReadContent(const Json& content, const std::string& where);

}  // namespace litecache::server
