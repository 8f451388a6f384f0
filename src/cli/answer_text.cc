#include "cli/answer_text.h"

#include <fmt/format.h>

#include <optional>

#include "server/api/harmony.h"

namespace litecache::cli {
namespace {

constexpr std::string_view kDim = "\033[2m";
constexpr std::string_view kNormal = "\033[0m";

}  // namespace

AnswerText::AnswerText(bool harmony, bool dim) : dim_(dim) {
  if (harmony) {
    parts_ = std::make_unique<server::HarmonyAnswer>(server::kHarmonyPrompt, std::nullopt, 0);
  }
}

std::string AnswerText::Add(const std::string& piece) {
  if (parts_ == nullptr) {
    answer_ += piece;
    return piece;
  }
  std::vector<server::ToolEvent> events;
  parts_->Add(piece, &events);
  return Print(events);
}

std::string AnswerText::Finish() {
  std::vector<server::ToolEvent> events;
  if (parts_ != nullptr) parts_->Finish(&events);
  return Print(events);
}

std::string AnswerText::Print(const std::vector<server::ToolEvent>& events) {
  std::string text;
  for (const server::ToolEvent& event : events) {
    const bool thought = event.kind == server::ToolEvent::kReasoning;
    if (!thought) answer_ += event.text;
    if (thought && !dim_) continue;
    // Every piece ends undimmed, whatever happens after it.
    text += thought    ? fmt::format("{}{}{}", kDim, event.text, kNormal)
            : thought_ ? "\n\n" + event.text
                       : event.text;
    thought_ = thought;
  }
  return text;
}

}  // namespace litecache::cli
