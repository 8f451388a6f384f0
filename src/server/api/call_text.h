// Text before calls and between them, where a tag opens each of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/tool_calls.h"

namespace litecache::server {

// White space before a call is a separator, not part of the text; so is what follows the last one.
class CallText {
 public:
  // tag: must outlive this.
  explicit CallText(std::string_view tag) : tag_(tag) {}

  // Emits what is certain to be text. Returns how much of `rest` has been used: up to the end of
  // the tag if it is there. last: nothing follows. called: there have been calls.
  size_t Take(std::string_view rest, bool last, bool called, std::vector<ToolEvent>* events);
  // The tag is the last that Take() has used.
  bool opened() const { return !raw_.empty(); }
  // The white space before the tag, and the tag: text if no call follows.
  std::string TakeRaw();

 private:
  void Say(std::string_view text, std::vector<ToolEvent>* events);

  const std::string_view tag_;
  std::string space_;  // white space that is not emitted
  std::string raw_;
};

}  // namespace litecache::server
