// A parser of calls that takes its text apart in steps.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/tool_calls.h"

namespace litecache::server {

class SteppedParser : public CallParser {
 public:
  void Add(std::string_view piece, std::vector<ToolEvent>* events) final;
  void Finish(std::vector<ToolEvent>* events) final;

 protected:
  // Calls beyond `most` are dropped.
  explicit SteppedParser(int most) : most_(most) {}

  // One step; false where more text is needed. last: none follows.
  virtual bool Step(bool last) = 0;

  std::string_view Rest() const { return std::string_view(pending_).substr(at_); }
  // Joins what it emits to the event before, if that is of the same kind.
  void Emit(ToolEvent::Kind kind, std::string_view text);

  std::string pending_;  // not taken apart from at_ on
  size_t at_ = 0;
  std::vector<ToolEvent>* events_ = nullptr;  // during a step
  std::string raw_;                           // of what may be a call
  int calls_ = 0;

 private:
  void Run(bool last, std::vector<ToolEvent>* events);

  const int most_;
};

}  // namespace litecache::server
