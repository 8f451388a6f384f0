// Calls with their arguments between tags (call_tags.h): as Qwen3-Coder, Qwen3.5 and others write
// them,
//   <tool_call>
//   <function=NAME>
//   <parameter=NAME>
//   VALUE
//   </parameter>
//   </function>
//   </tool_call>
// as GLM-4.5 does, and GLM-4.7 without the line breaks,
//   <tool_call>NAME
//   <arg_key>NAME</arg_key>
//   <arg_value>VALUE</arg_value>
//   </tool_call>
// and as MiniMax-M2 does, with any number of calls inside of the outer tags:
//   <minimax:tool_call>
//   <invoke name="NAME">
//   <parameter name="NAME">VALUE</parameter>
//   </invoke>
//   </minimax:tool_call>
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call_tags.h"
#include "server/api/stepped_parser.h"
#include "server/api/tool_calls.h"
#include "server/api/xml_types.h"

namespace litecache::server {

// The arguments of a call become a JSON object. A value that the function's schema calls a string
// is taken as it is, without line breaks that belong to its tags, and emitted as it is written.
// Another one is read as JSON once it is complete; it becomes a string if it is none, or none that
// a schema with strings among its types allows. Arguments that the schema does not name are
// strings; one that is written twice keeps its first value.
//
// Models leave tags out: the one that opens a call, where a further tag says that a function
// follows, and it is offered; the one behind a function's arguments, where the call ends. A value's
// end tag ends it where a further tag follows, or, where a line break before it belongs to it, at
// the beginning of a line. What stands between parameters otherwise is dropped. The
// arguments of a call that is cut off are not complete JSON.
class XmlCallParser final : public SteppedParser {
 public:
  // tags: must outlive this. types: of the functions offered. Calls beyond `most` are dropped.
  XmlCallParser(const CallTags& tags, std::shared_ptr<const CallTypes> types, int most);

 private:
  enum State {
    kText,
    kOpened,
    kName,
    kAfterName,
    kBetween,
    kParameterName,
    kBeforeValue,
    kValue,
    kAfterValue,
    kAfterCall
  };

  bool Step(bool last) override;
  bool Text(bool last);
  bool Opened(bool last);
  bool Name(bool last);
  bool AfterName(bool last);
  bool Between(bool last);
  bool ParameterName(bool last);
  bool BeforeValue(bool last);
  bool Value();
  bool AfterValue(bool last);
  bool AfterCall(bool last);

  // Moves white space to space_.
  void SkipSpace();
  // Keeps white space at the end in space_: before a call it is no part of the text.
  void Say(std::string_view text);
  // What began like a call is text.
  void NoCall();
  void BeginValue();
  void AddToValue(std::string_view text);
  void EndValue();
  // The argument's name, as JSON, and what separates it from others and its value.
  std::string Key();

  const CallTags& tags_;
  // Those that may come next: in text, between parameters, behind a call.
  std::vector<std::string_view> begin_, between_, after_call_;
  std::string name_breaks_, parameter_breaks_;  // characters that no name has
  const std::shared_ptr<const CallTypes> types_;
  State state_ = kText;
  std::string space_;  // white space that is not emitted

  // Of the current call.
  bool tagged_ = false;                       // it stands behind the tag that opens calls
  const ArgumentTypes* arguments_ = nullptr;  // null: the function is not known
  std::set<std::string> written_;             // names of its arguments so far
  bool any_ = false;                          // some have been emitted

  std::string name_;  // of the current function, then argument

  // Of the current argument.
  const std::set<std::string>* value_types_ = nullptr;  // null: a string
  bool repeated_ = false;
  bool first_ = false;    // nothing of the value has been read
  bool empty_ = false;    // nothing but the line break before it
  bool newline_ = false;  // a line break that may belong to the end tag
  std::string value_;     // unless it is emitted as it is written
};

}  // namespace litecache::server
