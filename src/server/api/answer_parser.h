// What a model writes, taken apart: thoughts, text, calls of functions.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "litecache/engine.h"
#include "server/api/reasoning.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

// Of one answer, which arrives in pieces. Thoughts come before everything else; calls are looked
// for in what follows them.
class AnswerParser {
 public:
  // calls: unset where there are no functions.
  AnswerParser(Thinking thinking, std::optional<ToolCallParser> calls)
      : thoughts_(thinking), calls_(std::move(calls)) {}

  // Whether the answer may be anything else than text.
  bool splits() const { return calls_.has_value() || thoughts_.enabled(); }
  // Of the chunks so far, those that belong to the thoughts.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

  // What the next chunk adds.
  std::vector<ToolEvent> Take(const Chunk& chunk) {
    if (thoughts_.thinks()) reasoning_tokens_ += static_cast<int64_t>(chunk.tokens.size());
    std::vector<ToolEvent> parts, events;
    thoughts_.Add(chunk.text, &parts);
    const bool last = chunk.finish != FinishReason::kNone;
    if (last) thoughts_.Finish(&parts);
    Forward(std::move(parts), &events);
    if (last && calls_) calls_->Finish(&events);
    return events;
  }

 private:
  void Forward(std::vector<ToolEvent> parts, std::vector<ToolEvent>* events) {
    for (ToolEvent& part : parts) {
      if (calls_ && part.kind == ToolEvent::kText) {
        calls_->Add(part.text, events);
      } else {
        events->push_back(std::move(part));
      }
    }
  }

  ThoughtSplitter thoughts_;
  std::optional<ToolCallParser> calls_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace litecache::server
