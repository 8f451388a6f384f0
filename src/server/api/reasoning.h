// What a model thinks before it answers: <think>...</think> in its text, or other tags; and tags
// around its answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/tool_calls.h"
#include "tokenizer/tokenizer.h"

namespace litecache::server {

struct ThinkTags {
  std::string_view open = "<think>", close = "</think>";
  std::string_view answer, answer_end;  // around the answer; "": it has no tags
  std::string_view calls;  // begins calls that stand among the thoughts and end them; "": none do
};

// Those that the template has.
ThinkTags ThinkTagsOf(std::string_view chat_template);

// How an answer begins.
enum class Thinking {
  kNone,   // with the answer: the template knows no thoughts, or its prompt has ended them
  kMaybe,  // with the opening tag where the model thinks
  kOpen,   // with thoughts: the prompt has ended with the opening tag
  kSaid,   // in the answer: the prompt has the tag before it
};

// By the template's text and the prompt made with it.
Thinking DetectThinking(std::string_view chat_template, std::span<const int32_t> prompt,
                        const tokenizer::Tokenizer& tokenizer);

// Splits text that arrives in pieces into thoughts and answer, both without the white space around
// them that the tags leave. Text comes out as soon as it cannot be the beginning of a tag.
class ThoughtSplitter {
 public:
  ThoughtSplitter(Thinking thinking, const ThinkTags& tags);

  // Appends kReasoning and kText events.
  void Add(std::string_view piece, std::vector<ToolEvent>* events);
  // The answer has ended.
  void Finish(std::vector<ToolEvent>* events);
  bool enabled() const { return state_ != kAnswer; }
  // What comes next belongs to the thoughts, as far as is known.
  bool thinks() const { return state_ == kThoughts; }

 private:
  enum State { kBegin, kThoughts, kTaggedAnswer, kBehind, kAnswer };

  // One step; false where more text is needed.
  bool Advance(bool last, std::vector<ToolEvent>* events);
  bool Begin(bool last);
  // Of thoughts or an answer, up to the tag that ends them.
  bool Passage(bool last, std::vector<ToolEvent>* events);

  ThinkTags tags_;
  State state_;
  State next_ = kAnswer;   // behind the white space behind a tag
  bool may_think_ = true;  // at the beginning
  bool said_ = false;      // some of the passage
  std::string pending_;    // not given out
};

}  // namespace litecache::server
