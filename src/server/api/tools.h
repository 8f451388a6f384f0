// The functions a request offers to the model.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/api/chat_prompt.h"
#include "server/api/fields.h"
#include "server/api/model.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

struct ToolUse {
  Json tools = Json::array();  // as a chat template reads them: {"type", "function": {...}}
  enum Choice { kNone, kAuto, kRequired } choice = kNone;
  std::string named;  // the only function that may be called, with kRequired; "": any
  bool parallel = true;
  Json choice_field = "none";  // as the request gave it
  ToolFormat format = ToolFormat::kNone;

  // Answers are to be searched for calls.
  bool active() const { return choice != kNone && !tools.empty(); }
  std::set<std::string> Names() const;
  ToolCallParser Parser() const;
};

// tools, tool_choice, parallel_tool_calls. `flat`: the function's fields stand beside "type", as in
// the responses API.
ToolUse ReadTools(Fields& fields, bool flat);

// Gives the functions to the prompt's template, finds the form of calls, and for a required call
// sets request->constraint. Throws ApiError where the template knows no tools and none is required.
void ApplyTools(const ServedModel& model, ChatPromptFields* prompt, ToolUse* use, Request* request);

}  // namespace litecache::server
