// Harmony, the format of gpt-oss. What the model says is a row of messages, of which the prompt has
// begun the first one:
//   <|start|>assistant<|channel|>CHANNEL<|message|>TEXT<|end|>
// Channel "analysis" has its thoughts, "final" the answer, "commentary" calls of functions
// (to=functions.NAME behind the role or the channel, then arguments up to <|call|>) and what it
// says before them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar_cache.h"
#include "server/api/answer_parser.h"
#include "server/api/json.h"
#include "tokenizer/tokenizer.h"

namespace litecache::server {

// How the prompt for an answer ends.
inline constexpr std::string_view kHarmonyPrompt = "<|start|>assistant";

// Whether a model with this chat template writes the format: the template writes <|channel|> and
// <|message|>.
bool IsHarmony(std::string_view chat_template);

// What such a template does not take as other templates do. Messages are as ReadMessages() returns
// them: thoughts get the template's name for them, its one place for instructions gets those of all
// the system messages at the beginning, and each call becomes a message, followed by its result.
void ToHarmonyMessages(Json* messages);

// What the answer's first message begins with in the prompt, up to <|message|>; "" where the prompt
// has begun none.
std::string BegunMessage(std::span<const int32_t> prompt, const tokenizer::Tokenizer& tokenizer);

// The text before the arguments of a call.
std::string BeforeHarmonyArguments(const std::string& name);
// A constraint that `grammars` has made, of what comes behind the thoughts: of calls, with the text
// before their arguments, or of the text in channel final. Throws Unsupported for a tokenizer
// without the format's tokens.
std::shared_ptr<const TokenConstraint> ConstrainHarmony(
    std::shared_ptr<const TokenConstraint> constraint, const std::string& begun, bool calls,
    const tokenizer::Tokenizer& tokenizer, grammar::GrammarCache* grammars);

// Takes text apart that arrives in pieces. Text and thoughts come out as soon as they cannot be the
// beginning of a tag. Text that no header announces, or a broken one, is text of the answer.
class HarmonyAnswer final : public AnswerParts {
 public:
  // begun: BegunMessage(). functions: those offered; unset: nothing is a call. Calls beyond `most`
  // are dropped.
  HarmonyAnswer(std::string_view begun, std::optional<std::set<std::string>> functions, int most);

  void Add(std::string_view piece, std::vector<ToolEvent>* events) override;
  void Finish(std::vector<ToolEvent>* events) override;
  bool splits() const override { return true; }
  bool thinks() const override { return state_ == kContent && kind_ == ToolEvent::kReasoning; }

 private:
  // One step; false where more text is needed.
  bool Step(std::vector<ToolEvent>* events, bool last);
  bool Between(bool last);
  bool Header(std::vector<ToolEvent>* events, bool last);
  bool Content(std::vector<ToolEvent>* events, bool last);
  void Begin(ToolEvent::Kind kind);
  void Say(std::string text, std::vector<ToolEvent>* events);

  std::optional<std::set<std::string>> functions_;
  int most_;
  enum { kBetween, kHeader, kContent } state_ = kBetween;
  std::string pending_;                      // not given out
  ToolEvent::Kind kind_ = ToolEvent::kText;  // of the current message
  bool said_ = false;                        // some of its content
  int calls_ = 0;
  std::set<ToolEvent::Kind> before_;  // kinds of which earlier messages have said something
};

}  // namespace litecache::server
