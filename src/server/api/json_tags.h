// What stands around calls that are JSON objects, in each form.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/tool_calls.h"

namespace litecache::server {

// A call is {NAME: "get_weather", ARGUMENTS: {...}}, with the names of the two fields.
struct JsonTags {
  std::string_view open;   // before a call or a list of calls; "": calls are the whole answer
  std::string_view close;  // behind it; "": the end of the JSON is
  // As the template writes them: between `open` and a call, between two calls, before `close`.
  std::string_view before, between, after;
  // "": the only field has the function's name, and its value is the arguments.
  std::string_view name = "name";
  std::string_view arguments = "arguments";
  // What stands between a name and arguments without JSON around both, NAME[ARGS]{...}; "": none
  // does. A parser takes either form where it is set.
  std::string_view behind_name;
  bool writes_names = false;  // the template writes calls so

  // Whether the template writes a list of calls.
  bool list() const { return before.starts_with('['); }

  // For the functions of the same names (tool_calls.h).
  std::string BeforeCalls() const;
  std::string AfterCalls() const;
  std::string BeforeArguments(std::string_view function) const;
  std::string AfterArguments() const;
  std::optional<std::string> Separator() const;
  std::string AllTags() const;
};

// Null for a form without JSON objects.
const JsonTags* JsonTagsOf(ToolFormat format);

// The form whose tags the chat template has; unset: none.
std::optional<ToolFormat> DetectJsonTags(std::string_view chat_template);

}  // namespace litecache::server
