// Calls as Gemma 4 writes them, any number of them between text:
//   <|tool_call>call:NAME{city:<|"|>Paris<|"|>,days:3,list:[true,{a:1}]}<tool_call|>
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
struct GemmaTags {
  static constexpr std::string_view kOpen = "<|tool_call>",
                                    kName = "call:", kClose = "<tool_call|>";
  static constexpr std::string_view kQuote = "<|\"|>";  // around strings

  static std::string BeforeCalls() { return ""; }
  static std::string AfterCalls() { return ""; }
  static std::string BeforeArguments(std::string_view name);
  static std::string AfterArguments() { return std::string(kClose); }
  static std::optional<std::string> Separator() { return ""; }
  static std::string AllTags();
};

// The arguments become JSON. Names of fields may have the quotes of strings, and there may be white
// space between values; a word that is no value of JSON is a string. The tag that closes a call
// may be missing.
class GemmaCallParser final : public SteppedParser {
 public:
  // Calls beyond `most` are dropped.
  explicit GemmaCallParser(int most) : SteppedParser(most) {}

 private:
  enum State {
    kText,
    kFunction,    // its name
    kElement,     // of an object or a list, or its end
    kName,        // a field's, inside of quotes
    kBehindName,  // a colon
    kValue,
    kString,       // inside of its quotes
    kBehindValue,  // a comma, or the end of the object or list
    kEnd           // of the call
  };

  bool Step(bool last) override;
  bool Text(bool last);
  bool Function(bool last);
  bool Element();
  bool BareName();
  bool BehindName();
  bool Value();
  bool Word();
  bool Quoted(State behind);
  bool BehindValue();
  bool End();

  // Moves behind white space; false at the end of what is pending.
  bool SkipBlanks();
  bool Open(char bracket);
  bool CloseBracket();
  // What cannot be part of arguments ends the call.
  bool Broken();
  void Argument(std::string_view json) { Emit(ToolEvent::kArguments, json); }

  CallText text_{GemmaTags::kOpen};
  State state_ = kText;
  std::string open_;    // the brackets that are open
  bool comma_ = false;  // stands before the next element
};

}  // namespace litecache::server
