// Calls with their arguments between tags, as Qwen3-Coder, Qwen3.5 and others write them:
//   <tool_call>
//   <function=NAME>
//   <parameter=NAME>
//   VALUE
//   </parameter>
//   </function>
//   </tool_call>
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/tool_calls.h"
#include "server/api/xml_types.h"

namespace litecache::server {

// Whether a model with this chat template writes such calls: the template has the tags of functions
// and parameters.
bool IsXml(std::string_view chat_template);

// The arguments of a call become a JSON object. A value that the function's schema calls a string
// is taken as it is, without the line breaks next to its tags, and emitted as it is written.
// Another one is read as JSON once it is complete; it becomes a string if it is none, or none that
// a schema with strings among its types allows. Arguments that the schema does not name are
// strings; one that is written twice keeps its first value.
//
// Models leave tags out: <tool_call> before a function that is offered, </function> before
// </tool_call>. </parameter> ends a value at the beginning of a line, or where a further tag of the
// call follows. What stands between parameters otherwise is dropped. The arguments of a call that
// is cut off are not complete JSON.
class XmlCallParser final : public CallParser {
 public:
  // types: of the functions offered. Calls beyond `most` are dropped.
  XmlCallParser(std::shared_ptr<const CallTypes> types, int most)
      : types_(std::move(types)), most_(most) {}

  void Add(std::string_view piece, std::vector<ToolEvent>* events) override;
  void Finish(std::vector<ToolEvent>* events) override;

 private:
  enum State { kText, kOpened, kName, kBetween, kParameterName, kValue, kAfterValue, kAfterCall };

  void Run(bool last, std::vector<ToolEvent>* events);
  // One step; false where more text is needed.
  bool Step(bool last);
  bool Text(bool last);
  bool Opened(bool last);
  bool Name(bool last);
  bool Between(bool last);
  bool ParameterName();
  bool Value();
  bool AfterValue(bool last);
  bool AfterCall(bool last);

  std::string_view Rest() const { return std::string_view(pending_).substr(at_); }
  // Moves white space to space_.
  void SkipSpace();
  void Emit(ToolEvent::Kind kind, std::string_view text);
  // Keeps white space at the end in space_: before a call it is no part of the text.
  void Say(std::string_view text);
  // What began like a call is text.
  void NoCall();
  void BeginValue();
  void AddToValue(std::string_view text);
  void EndValue();
  // What stands before the argument's value.
  std::string BeforeValue();

  const std::shared_ptr<const CallTypes> types_;
  const int most_;
  State state_ = kText;
  std::string pending_;  // not taken apart from at_ on
  size_t at_ = 0;
  std::vector<ToolEvent>* events_ = nullptr;  // during a call of Add() or Finish()
  std::string space_;                         // white space that is not emitted
  std::string raw_;                           // of the current call, while its name is not known
  int calls_ = 0;

  // Of the current call.
  bool tagged_ = false;                       // it begins with <tool_call>
  const ArgumentTypes* arguments_ = nullptr;  // null: the function is not known
  std::set<std::string> written_;             // names of its arguments so far
  bool any_ = false;                          // some have been emitted

  // Of the current argument.
  std::string name_;
  const std::set<std::string>* value_types_ = nullptr;  // null: a string
  bool repeated_ = false;
  bool first_ = false;    // nothing of the value has been read
  bool empty_ = false;    // nothing but the line break before it
  bool newline_ = false;  // a line break that may be the one before the end tag
  std::string value_;     // unless it is emitted as it is written
};

}  // namespace litecache::server
