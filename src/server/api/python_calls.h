// Calls as OLMo 3 writes them, any number of them between text, each on a line:
//   <function_calls>get_weather(city="Paris", days=3)
//   ping()</function_calls>
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call_text.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

// What stands around calls, for the functions of the same names (tool_calls.h).
struct PythonTags {
  static constexpr std::string_view kOpen = "<function_calls>", kClose = "</function_calls>";

  static std::string BeforeCalls() { return std::string(kOpen); }
  static std::string AfterCalls() { return std::string(kClose); }
  static std::string BeforeArguments(std::string_view name) { return std::string(name); }
  static std::string AfterArguments() { return ""; }
  static std::optional<std::string> Separator() { return "\n"; }
  static std::string AllTags();
};

// Values may be JSON or literals of Python. They are emitted once they are complete.
class PythonCallParser final : public CallParser {
 public:
  // Calls beyond `most` are dropped.
  explicit PythonCallParser(int most) : most_(most) {}

  void Add(std::string_view piece, std::vector<ToolEvent>* events) override;
  void Finish(std::vector<ToolEvent>* events) override;

 private:
  enum State { kText, kFunction, kArgument, kValue };

  void Run(bool last, std::vector<ToolEvent>* events);
  // One step; false where more text is needed.
  bool Step(bool last);
  bool Text(bool last);
  bool Function(bool last);
  bool Argument();
  bool Value();

  std::string_view Rest() const { return std::string_view(pending_).substr(at_); }
  // Moves behind white space, which becomes part of raw_; false at the end of what is pending.
  bool SkipBlanks();
  void Emit(ToolEvent::Kind kind, std::string_view text);

  const int most_;
  CallText text_{PythonTags::kOpen};
  State state_ = kText;
  std::string pending_;  // not taken apart from at_ on
  size_t at_ = 0;
  std::vector<ToolEvent>* events_ = nullptr;  // during a call of Add() or Finish()
  std::string raw_;                           // of what may be a call
  int calls_ = 0;
  bool any_ = false;  // arguments of the current call have been emitted

  // Of the current value: how far it has been read, and the brackets and the quote that are open.
  size_t read_ = 0;
  int depth_ = 0;
  char quote_ = '\0';
};

}  // namespace litecache::server
