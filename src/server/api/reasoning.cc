#include "server/api/reasoning.h"

#include <algorithm>
#include <utility>

namespace litecache::server {
namespace {

constexpr std::string_view kSpace = " \n\r\t";

size_t LeadingSpace(std::string_view text) {
  return std::min(text.find_first_not_of(kSpace), text.size());
}

// How much comes before white space, and before what may be the beginning of the tag, at the end.
size_t Certain(std::string_view text) {
  size_t size = std::min(kThinkEndTag.size() - 1, text.size());
  while (!text.ends_with(kThinkEndTag.substr(0, size))) --size;
  return text.substr(0, text.size() - size).find_last_not_of(kSpace) + 1;
}

}  // namespace

Thinking DetectThinking(std::string_view chat_template, std::span<const int32_t> prompt,
                        const tokenizer::Tokenizer& tokenizer) {
  // A tag is at most as many tokens as bytes, and some white space may follow it.
  constexpr size_t kTail = 16;
  const std::string tail =
      tokenizer.Decode(prompt.last(std::min(prompt.size(), kTail)), /*skip_special=*/false);
  const std::string_view end = std::string_view(tail).substr(0, tail.find_last_not_of(kSpace) + 1);
  if (end.ends_with(kThinkTag)) return Thinking::kOpen;
  const bool known = chat_template.find(kThinkTag) != std::string_view::npos ||
                     chat_template.find(kThinkEndTag) != std::string_view::npos;
  return known && !end.ends_with(kThinkEndTag) ? Thinking::kMaybe : Thinking::kNone;
}

void ThoughtSplitter::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  while (Advance(false, events)) {
  }
}

void ThoughtSplitter::Finish(std::vector<ToolEvent>* events) {
  while (Advance(true, events)) {
  }
}

// One step; false where more text is needed.
bool ThoughtSplitter::Advance(bool last, std::vector<ToolEvent>* events) {
  switch (state_) {
    case kBegin: {
      const std::string_view rest = std::string_view(pending_).substr(LeadingSpace(pending_));
      if (rest.starts_with(kThinkTag)) {
        pending_.erase(0, pending_.size() - rest.size() + kThinkTag.size());
        state_ = kThoughts;
        return true;
      }
      if (!last && kThinkTag.starts_with(rest)) return false;
      state_ = kAnswer;
      return true;
    }
    case kThoughts: {
      if (!said_) pending_.erase(0, LeadingSpace(pending_));
      const size_t tag = pending_.find(kThinkEndTag);
      const bool ends = tag != std::string::npos;
      const std::string_view text = std::string_view(pending_).substr(0, tag);
      const size_t certain = ends || last ? text.find_last_not_of(kSpace) + 1 : Certain(text);
      if (certain > 0) {
        said_ = true;
        events->push_back({ToolEvent::kReasoning, std::string(text.substr(0, certain))});
      }
      pending_.erase(0, ends ? tag + kThinkEndTag.size() : last ? text.size() : certain);
      if (ends) state_ = kBehind;
      return ends;
    }
    case kBehind:
      pending_.erase(0, LeadingSpace(pending_));
      if (pending_.empty()) return false;
      state_ = kAnswer;
      return true;
    case kAnswer:
      if (!pending_.empty()) events->push_back({ToolEvent::kText, std::exchange(pending_, {})});
      return false;
  }
  return false;
}

}  // namespace litecache::server
