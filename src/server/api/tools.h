// The functions that a request offers to the model.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/api/answer_parser.h"
#include "server/api/chat_prompt.h"
#include "server/api/fields.h"
#include "server/api/model.h"
#include "server/api/xml_calls.h"

namespace litecache::server {

struct ToolUse {
  Json tools = Json::array();  // in the form that chat templates read: {"type", "function": {...}}
  enum Choice { kNone, kAuto, kRequired } choice = kNone;
  std::string named;             // the only function that may be called, with kRequired; "": any
  std::set<std::string> custom;  // functions that a request calls tools of type "custom"
  bool parallel = true;
  Json choice_field = "none";  // as sent in the request
  ToolFormat format = ToolFormat::kNone;
  std::shared_ptr<const CallTypes> types;  // of calls with tags (call_tags.h)
  // Set once the prompt is encoded.
  Thinking thinking = Thinking::kNone;
  ThinkTags think_tags;
  std::string begun;  // BegunMessage(), with kHarmony

  // Whether answers are searched for calls.
  bool active() const { return choice != kNone && !tools.empty(); }
  bool required() const { return choice == kRequired; }
  std::set<std::string> Names() const;
  AnswerParser Parser() const;
};

// Reads tools, tool_choice, parallel_tool_calls. `flat`: the function's fields are next to "type",
// as in the responses API; its tools of type "custom" become functions of a text, {"input": TEXT},
// and the tools that OpenAI's servers run are left out.
ToolUse ReadTools(Fields& fields, bool flat);

// Passes the functions to the prompt's template, determines the form of calls, and sets
// request->constraint for a required call. If the template does not support tools, the messages
// explain them, and calls and results in them become text. Throws ApiError.
void ApplyTools(const ServedModel& model, ChatPromptFields* prompt, ToolUse* use, Request* request);

// Determines from the encoded prompt how the answer begins. The request's constraint holds behind
// the thoughts then.
void ApplyThinking(const ServedModel& model, const ChatPromptFields& prompt, ToolUse* use,
                   Request* request);

}  // namespace litecache::server
