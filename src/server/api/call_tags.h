// The tags of calls whose arguments stand between tags, each form's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/parameter_tags.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

struct CallTags {
  std::string_view open, close;   // around a call, or around all that follow one another
  std::string_view function;      // before the function's name; "": `open` is the tag before it
  std::string_view name_end;      // behind the name; "": white space or the next tag ends it
  std::string_view function_end;  // behind the arguments; "": `close` is
  bool around_all = false;        // `open` and `close` stand around several calls
  grammar::ParameterTags parameter;

  // As the template writes calls.
  std::string BeforeCalls() const;  // around all of them
  std::string AfterCalls() const;
  std::string BeforeArguments(std::string_view name) const;
  std::string AfterArguments() const;
  std::string Separator() const;  // between two calls
  std::string AllTags() const;
};

// Null for a form without such tags.
const CallTags* CallTagsOf(ToolFormat format);

// The form whose tags the chat template has; unset: none.
std::optional<ToolFormat> DetectCallTags(std::string_view chat_template);

}  // namespace litecache::server
