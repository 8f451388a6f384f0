#include "server/api/reasoning.h"

#include <algorithm>
#include <utility>

namespace litecache::server {
namespace {

constexpr std::string_view kSpace = " \n\r\t";

size_t LeadingSpace(std::string_view text) {
  return std::min(text.find_first_not_of(kSpace), text.size());
}

}  // namespace

ThinkTags ThinkTagsOf(std::string_view chat_template) {
  for (const ThinkTags tags :
       {ThinkTags{"<seed:think>", "</seed:think>"}, ThinkTags{"[THINK]", "[/THINK]"}}) {
    if (chat_template.find(tags.open) != std::string_view::npos) return tags;
  }
  return {};
}

Thinking DetectThinking(std::string_view chat_template, std::span<const int32_t> prompt,
                        const tokenizer::Tokenizer& tokenizer) {
  const ThinkTags tags = ThinkTagsOf(chat_template);
  // A tag is at most as many tokens as bytes, and some white space may follow it.
  constexpr size_t kTail = 16;
  const std::string tail =
      tokenizer.Decode(prompt.last(std::min(prompt.size(), kTail)), /*skip_special=*/false);
  const std::string_view end = std::string_view(tail).substr(0, tail.find_last_not_of(kSpace) + 1);
  if (end.ends_with(tags.open)) return Thinking::kOpen;
  const bool known = chat_template.find(tags.open) != std::string_view::npos ||
                     chat_template.find(tags.close) != std::string_view::npos;
  return known && !end.ends_with(tags.close) ? Thinking::kMaybe : Thinking::kNone;
}

// How much comes before white space, and before what may be the beginning of the tag, at the end.
size_t ThoughtSplitter::Certain(std::string_view text) const {
  size_t size = std::min(tags_.close.size() - 1, text.size());
  while (!text.ends_with(tags_.close.substr(0, size))) --size;
  return text.substr(0, text.size() - size).find_last_not_of(kSpace) + 1;
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
      if (rest.starts_with(tags_.open)) {
        pending_.erase(0, pending_.size() - rest.size() + tags_.open.size());
        state_ = kThoughts;
        return true;
      }
      if (!last && tags_.open.starts_with(rest)) return false;
      state_ = kAnswer;
      return true;
    }
    case kThoughts: {
      if (!said_) pending_.erase(0, LeadingSpace(pending_));
      const size_t tag = pending_.find(tags_.close);
      const bool ends = tag != std::string::npos;
      const std::string_view text = std::string_view(pending_).substr(0, tag);
      const size_t certain = ends || last ? text.find_last_not_of(kSpace) + 1 : Certain(text);
      if (certain > 0) {
        said_ = true;
        events->push_back({ToolEvent::kReasoning, std::string(text.substr(0, certain))});
      }
      pending_.erase(0, ends ? tag + tags_.close.size() : last ? text.size() : certain);
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
