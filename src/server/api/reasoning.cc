#include "server/api/reasoning.h"

#include <algorithm>
#include <utility>

namespace litecache::server {
namespace {

constexpr std::string_view kSpace = " \n\r\t";

// Tags, and what else a template has whose model writes them.
struct ThinkForm {
  ThinkTags tags;
  std::string_view sign;
};

// The first one counts. Of Command R7B and A; Apertus; Gemma 4; Seed-OSS; Magistral and Ministral
// 3; Hunyuan; MiniMax-M2, which has <response> around the results of calls; Granite 3, ERNIE 4.5.
constexpr ThinkTags kCommand = {"<|START_THINKING|>", "<|END_THINKING|>"};
constexpr ThinkForm kForms[] = {
    {{kCommand.open, kCommand.close, "<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     "<|START_RESPONSE|>"},
    {{kCommand.open, kCommand.close, "<|START_TEXT|>", "<|END_TEXT|>"}, "<|START_TEXT|>"},
    {kCommand, ""},
    {{.open = "<|inner_prefix|>", .close = "<|inner_suffix|>", .calls = "<|tools_prefix|>"}, ""},
    {{"<|channel>thought", "<channel|>"}, ""},
    {{"<seed:think>", "</seed:think>"}, ""},
    {{"[THINK]", "[/THINK]"}, ""},
    {{"<think>", "</think>", "<answer>", "</answer>"}, "<answer>"},
    {{}, "<minimax:tool_call>"},
    {{"<think>", "</think>", "<response>", "</response>"}, "<response>"},
};

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool Knows(std::string_view chat_template, const ThinkTags& tags) {
  return Has(chat_template, tags.open) || Has(chat_template, tags.close);
}

// Whether the last of the tags around answers in the prompt is the one before them.
bool InAnswer(std::span<const int32_t> prompt, const ThinkTags& tags,
              const tokenizer::Tokenizer& tokenizer) {
  const auto begin = tokenizer.TokenToId(tags.answer), end = tokenizer.TokenToId(tags.answer_end);
  if (!begin || !end) return false;
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(),
                                 [&](int32_t id) { return id == *begin || id == *end; });
  return last != prompt.rend() && *last == *begin;
}

size_t LeadingSpace(std::string_view text) {
  return std::min(text.find_first_not_of(kSpace), text.size());
}

// The size of the text before what may be the beginning of the tag at its end.
size_t BeforeTag(std::string_view text, std::string_view tag) {
  size_t size = std::min(tag.size() - (tag.empty() ? 0 : 1), text.size());
  while (!text.ends_with(tag.substr(0, size))) --size;
  return text.size() - size;
}

}  // namespace

ThinkTags ThinkTagsOf(std::string_view chat_template) {
  for (const auto& [tags, sign] : kForms) {
    if (Knows(chat_template, tags) && Has(chat_template, sign)) return tags;
  }
  return {};
}

Thinking DetectThinking(std::string_view chat_template, std::span<const int32_t> prompt,
                        const tokenizer::Tokenizer& tokenizer) {
  const ThinkTags tags = ThinkTagsOf(chat_template);
  // A tag is at most as many tokens as bytes, and some white space may follow it.
  constexpr size_t kTail = 32;
  const std::string tail =
      tokenizer.Decode(prompt.last(std::min(prompt.size(), kTail)), /*skip_special=*/false);
  const std::string_view end = std::string_view(tail).substr(0, tail.find_last_not_of(kSpace) + 1);
  if (end.ends_with(tags.open)) return Thinking::kOpen;
  if (!tags.answer.empty() && (end.ends_with(tags.answer) || InAnswer(prompt, tags, tokenizer))) {
    return Thinking::kSaid;
  }
  return Knows(chat_template, tags) && !end.ends_with(tags.close) ? Thinking::kMaybe
                                                                  : Thinking::kNone;
}

ThoughtSplitter::ThoughtSplitter(Thinking thinking, const ThinkTags& tags)
    : tags_(tags),
      state_(thinking == Thinking::kOpen                            ? kThoughts
             : thinking == Thinking::kSaid                          ? kTaggedAnswer
             : thinking == Thinking::kMaybe || !tags.answer.empty() ? kBegin
                                                                    : kAnswer),
      may_think_(thinking == Thinking::kMaybe) {}

void ThoughtSplitter::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  while (Advance(false, events)) {
  }
}

void ThoughtSplitter::Finish(std::vector<ToolEvent>* events) {
  while (Advance(true, events)) {
  }
}

bool ThoughtSplitter::Advance(bool last, std::vector<ToolEvent>* events) {
  switch (state_) {
    case kBegin:
      return Begin(last);
    case kThoughts:
    case kTaggedAnswer:
      return Passage(last, events);
    case kBehind:
      pending_.erase(0, LeadingSpace(pending_));
      if (pending_.empty()) return false;
      state_ = next_;
      return true;
    case kAnswer:
      if (!pending_.empty()) events->push_back({ToolEvent::kText, std::exchange(pending_, {})});
      return false;
  }
  return false;
}

bool ThoughtSplitter::Begin(bool last) {
  const size_t space = LeadingSpace(pending_);
  const std::string_view rest = std::string_view(pending_).substr(space);
  bool more = false;
  for (const State state : {kThoughts, kTaggedAnswer}) {
    const std::string_view tag = state == kThoughts ? tags_.open : tags_.answer;
    if (tag.empty() || (state == kThoughts && !may_think_)) continue;
    if (rest.starts_with(tag)) {
      pending_.erase(0, space + tag.size());
      state_ = state;
      return true;
    }
    more = more || tag.starts_with(rest);
  }
  if (more && !last) return false;
  state_ = kAnswer;
  return true;
}

bool ThoughtSplitter::Passage(bool last, std::vector<ToolEvent>* events) {
  const bool thoughts = state_ == kThoughts;
  const std::string_view close = thoughts ? tags_.close : tags_.answer_end;
  const std::string_view calls = thoughts ? tags_.calls : "";
  if (!said_) pending_.erase(0, LeadingSpace(pending_));
  const size_t tag = pending_.find(close);
  const size_t call = calls.empty() ? std::string::npos : pending_.find(calls);
  const size_t end = std::min(tag, call);
  const bool ends = end != std::string::npos;
  const std::string_view text = std::string_view(pending_).substr(0, end);
  size_t certain = text.size();
  if (!ends && !last) certain = std::min(BeforeTag(text, close), BeforeTag(text, calls));
  certain = text.substr(0, certain).find_last_not_of(kSpace) + 1;
  if (certain > 0) {
    said_ = true;
    events->push_back({thoughts ? ToolEvent::kReasoning : ToolEvent::kText,
                       std::string(text.substr(0, certain))});
  }
  pending_.erase(0, tag < call ? tag + close.size() : ends ? end : last ? text.size() : certain);
  if (!ends) return false;
  said_ = may_think_ = false;
  next_ = thoughts && tag < call && !tags_.answer.empty() ? kBegin : kAnswer;
  state_ = kBehind;
  return true;
}

}  // namespace litecache::server
