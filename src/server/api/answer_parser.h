// What a model writes, taken apart: thoughts, text, calls of functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "litecache/engine.h"
#include "server/api/reasoning.h"
#include "server/api/tool_calls.h"

namespace litecache::server {

// Takes the text of one answer apart, which arrives in pieces.
class AnswerParts {
 public:
  virtual ~AnswerParts() = default;
  virtual void Add(std::string_view piece, std::vector<ToolEvent>* events) = 0;
  // The answer has ended.
  virtual void Finish(std::vector<ToolEvent>* events) = 0;
  // Whether the answer may be anything else than text.
  virtual bool splits() const = 0;
  // What comes next belongs to the thoughts, as far as is known.
  virtual bool thinks() const = 0;
};

// With tags around thoughts and calls. Thoughts come before everything else; calls are looked for
// in what follows them.
class TaggedAnswer final : public AnswerParts {
 public:
  // calls: null where there are no functions.
  TaggedAnswer(Thinking thinking, const ThinkTags& tags, std::unique_ptr<CallParser> calls)
      : thoughts_(thinking, tags), calls_(std::move(calls)) {}

  void Add(std::string_view piece, std::vector<ToolEvent>* events) override {
    std::vector<ToolEvent> parts;
    thoughts_.Add(piece, &parts);
    Forward(std::move(parts), events);
  }
  void Finish(std::vector<ToolEvent>* events) override {
    std::vector<ToolEvent> parts;
    thoughts_.Finish(&parts);
    Forward(std::move(parts), events);
    if (calls_) calls_->Finish(events);
  }
  bool splits() const override { return calls_ != nullptr || thoughts_.enabled(); }
  bool thinks() const override { return thoughts_.thinks(); }

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
  std::unique_ptr<CallParser> calls_;
};

// The parts of an answer, and how many of its tokens are thoughts.
class AnswerParser {
 public:
  explicit AnswerParser(std::unique_ptr<AnswerParts> parts) : parts_(std::move(parts)) {}

  bool splits() const { return parts_->splits(); }
  // Of the chunks so far, those that belong to the thoughts.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

  // What the next chunk adds.
  std::vector<ToolEvent> Take(const Chunk& chunk) {
    if (parts_->thinks()) reasoning_tokens_ += static_cast<int64_t>(chunk.tokens.size());
    std::vector<ToolEvent> events;
    parts_->Add(chunk.text, &events);
    if (chunk.finish != FinishReason::kNone) parts_->Finish(&events);
    return events;
  }

 private:
  std::unique_ptr<AnswerParts> parts_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace litecache::server
