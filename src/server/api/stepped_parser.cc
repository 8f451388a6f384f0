#include "server/api/stepped_parser.h"

namespace litecache::server {

void SteppedParser::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  Run(false, events);
}

void SteppedParser::Finish(std::vector<ToolEvent>* events) { Run(true, events); }

void SteppedParser::Run(bool last, std::vector<ToolEvent>* events) {
  events_ = events;
  while (Step(last)) {
  }
  events_ = nullptr;
  pending_.erase(0, at_);
  at_ = 0;
}

void SteppedParser::Emit(ToolEvent::Kind kind, std::string_view text) {
  if (text.empty() || (kind != ToolEvent::kText && calls_ > most_)) return;
  if (kind != ToolEvent::kBegin && !events_->empty() && events_->back().kind == kind) {
    events_->back().text += text;
  } else {
    events_->push_back({kind, std::string(text)});
  }
}

}  // namespace litecache::server
