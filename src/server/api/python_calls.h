// Calls as OLMo 3 writes them, any number of them between text, each on a line:
//   <function_calls>get_weather(city="Paris", days=3)
//   ping()</function_calls>
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call_text.h"
#include "server/api/stepped_parser.h"
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
class PythonCallParser final : public SteppedParser {
 public:
  // Calls beyond `most` are dropped.
  explicit PythonCallParser(int most) : SteppedParser(most) {}

 private:
  enum State { kText, kFunction, kArgument, kValue };

  bool Step(bool last) override;
  bool Text(bool last);
  bool Function(bool last);
  bool Argument();
  bool Value();

  // Moves behind white space, which becomes part of raw_; false at the end of what is pending.
  bool SkipBlanks();

  CallText text_{PythonTags::kOpen};
  State state_ = kText;
  bool any_ = false;  // arguments of the current call have been emitted

  // Of the current value: how far it has been read, and the brackets and the quote that are open.
  size_t read_ = 0;
  int depth_ = 0;
  char quote_ = '\0';
};

}  // namespace litecache::server
