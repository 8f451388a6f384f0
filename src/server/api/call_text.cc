#include "server/api/call_text.h"

#include <algorithm>
#include <utility>

namespace litecache::server {

std::string CallText::TakeRaw() { return std::exchange(raw_, {}); }

void CallText::Say(std::string_view text, std::vector<ToolEvent>* events) {
  const size_t end = text.find_last_not_of(" \n\r\t") + 1;
  if (end > 0) {
    std::string said = std::exchange(space_, {});
    said += text.substr(0, end);
    events->push_back({ToolEvent::kText, std::move(said)});
  }
  space_ += text.substr(end);
}

size_t CallText::Take(std::string_view rest, bool last, bool called,
                      std::vector<ToolEvent>* events) {
  const size_t at = rest.find(tag_);
  if (at != std::string_view::npos) {
    Say(rest.substr(0, at), events);
    raw_ = std::exchange(space_, {}).append(tag_);
    return at + tag_.size();
  }
  size_t size = rest.size();
  if (!last) {  // the tag may have begun
    size_t held = std::min(tag_.size() - 1, size);
    while (!rest.ends_with(tag_.substr(0, held))) --held;
    size -= held;
  }
  Say(rest.substr(0, size), events);
  if (last && !called && !space_.empty()) {
    events->push_back({ToolEvent::kText, std::exchange(space_, {})});
  }
  return size;
}

}  // namespace litecache::server
