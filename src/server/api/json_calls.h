// Calls as JSON objects, taken apart.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call_scanner.h"
#include "server/api/call_text.h"
#include "server/api/json_tags.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

// Behind the tag that opens calls, one call or a list of calls may stand, whatever the template
// writes. The tag that closes them may be missing. Without tags the whole answer is a call or
// several, with commas or semicolons in between, if the first one's function is offered.
class JsonCallParser final : public CallParser {
 public:
  // tags: must outlive this. names: the functions offered. Calls beyond `most` are dropped.
  JsonCallParser(const JsonTags& tags, std::set<std::string> names, int most);

  void Add(std::string_view piece, std::vector<ToolEvent>* events) override;
  void Finish(std::vector<ToolEvent>* events) override;

 private:
  enum State { kText, kOpened, kElement, kCall, kAfterCall, kBeforeClose };

  // One step; false where more of the answer is needed.
  bool Step(std::vector<ToolEvent>* events, bool last);
  bool Text(std::vector<ToolEvent>* events, bool last);
  bool WholeAnswer(std::vector<ToolEvent>* events, bool last);
  bool Opened(std::vector<ToolEvent>* events, bool last);
  // A name before the arguments, and what stands between them.
  bool BareName(std::vector<ToolEvent>* events, bool last);
  bool Element(bool last);
  bool Call(std::vector<ToolEvent>* events, bool last);
  bool AfterCall();
  bool BeforeClose();

  void BeginCall();
  // Moves so much of what is pending to the current call.
  void Take(size_t size);
  void Say(std::string text, std::vector<ToolEvent>* events);

  const JsonTags& tags_;
  const std::set<std::string> names_;
  const int most_;
  CallText text_;
  State state_ = kText;
  std::string pending_;  // not emitted so far
  std::string raw_;      // of what may be a call, with the white space before it
  CallScanner scanner_;
  bool begun_ = false;          // the call's name has been emitted
  bool has_arguments_ = false;  // some of its arguments have been emitted
  bool list_ = false;           // the call is an element of a list
  bool bare_name_ = false;      // it began with a name
  int calls_ = 0;
  bool only_text_ = false;  // the rest is text
};

}  // namespace litecache::server
