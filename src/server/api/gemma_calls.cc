#include "server/api/gemma_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api/json.h"
#include "server/api/python_literal.h"

namespace litecache::server {
namespace {

constexpr std::string_view kGemmaBlanks = " \n\r\t";
constexpr size_t kLongestWord = 1000;  // of names, and of values without quotes

// How much of the text comes before what may be the beginning of the tag at its end.
size_t BeforePartOf(std::string_view tag, std::string_view text) {
  size_t size = std::min(tag.size() - 1, text.size());
  while (!text.ends_with(tag.substr(0, size))) --size;
  return text.size() - size;
}

std::string_view WithoutBlanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kGemmaBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kGemmaBlanks) + 1);
}

}  // namespace

std::string GemmaTags::BeforeArguments(std::string_view name) {
  return fmt::format("{}{}{}", kOpen, kName, name);
}

std::string GemmaTags::AllTags() { return fmt::format("{}{}{}", kOpen, kClose, kQuote); }

bool GemmaCallParser::Step(bool last) {
  switch (state_) {
    case kText:
      return Text(last);
    case kFunction:
      return Function(last);
    case kElement:
      return Element();
    case kName:
      return Quoted(kBehindName);
    case kBehindName:
      return BehindName();
    case kValue:
      return Value();
    case kString:
      return Quoted(kBehindValue);
    case kBehindValue:
      return BehindValue();
    case kEnd:
      return End();
  }
  return false;
}

bool GemmaCallParser::SkipBlanks() {
  at_ = std::min(pending_.find_first_not_of(kGemmaBlanks, at_), pending_.size());
  return at_ < pending_.size();
}

bool GemmaCallParser::Text(bool last) {
  at_ += text_.Take(Rest(), last, calls_ > 0, events_);
  if (!text_.opened()) return false;
  raw_ = text_.TakeRaw();
  state_ = kFunction;
  return true;
}

bool GemmaCallParser::Function(bool last) {
  const std::string_view rest = Rest();
  const size_t brace = rest.find('{');
  const std::string_view head = WithoutBlanks(rest.substr(0, brace));
  const std::string_view begin = head.substr(0, GemmaTags::kName.size());
  const bool ends = brace != std::string_view::npos || rest.size() > kLongestWord || last;
  if (!ends && GemmaTags::kName.starts_with(begin)) return false;
  const std::string_view name = WithoutBlanks(head.substr(begin.size()));
  if (begin != GemmaTags::kName || name.empty() || brace >= kLongestWord ||
      name.find_first_of("<>\"' \n\r\t") != std::string_view::npos) {
    Emit(ToolEvent::kText, std::exchange(raw_, {}));
    state_ = kText;
    return true;
  }
  ++calls_;
  Emit(ToolEvent::kBegin, name);
  at_ += brace;
  open_.clear();
  return Open('{');
}

bool GemmaCallParser::Open(char bracket) {
  ++at_;
  open_ += bracket;
  Argument(std::string_view(&bracket, 1));
  comma_ = false;
  state_ = kElement;
  return true;
}

bool GemmaCallParser::CloseBracket() {
  Argument(Rest().substr(0, 1));
  ++at_;
  open_.pop_back();
  state_ = open_.empty() ? kEnd : kBehindValue;
  return true;
}

bool GemmaCallParser::Broken() {
  state_ = kText;
  return true;
}

bool GemmaCallParser::Element() {
  if (!SkipBlanks()) return false;
  const bool object = open_.back() == '{';
  if (pending_[at_] == (object ? '}' : ']')) return CloseBracket();
  if (!object) {
    if (std::exchange(comma_, false)) Argument(", ");
    state_ = kValue;
    return true;
  }
  if (!Rest().starts_with(GemmaTags::kQuote)) {
    return GemmaTags::kQuote.starts_with(Rest()) ? false : BareName();
  }
  at_ += GemmaTags::kQuote.size();
  Argument(std::exchange(comma_, false) ? ", \"" : "\"");
  state_ = kName;
  return true;
}

bool GemmaCallParser::BareName() {
  const std::string_view rest = Rest();
  const size_t end = rest.find_first_of(":,{}[]");
  if (end == std::string_view::npos && rest.size() <= kLongestWord) return false;
  const std::string_view name = WithoutBlanks(rest.substr(0, end));
  if (end >= kLongestWord || rest[end] != ':' || name.empty()) return Broken();
  Argument((std::exchange(comma_, false) ? ", " : "") + Dump(name));
  at_ += end;
  state_ = kBehindName;
  return true;
}

bool GemmaCallParser::BehindName() {
  if (!SkipBlanks()) return false;
  if (pending_[at_] != ':') return Broken();
  ++at_;
  Argument(": ");
  state_ = kValue;
  return true;
}

bool GemmaCallParser::Value() {
  if (!SkipBlanks()) return false;
  const char first = pending_[at_];
  if (first == '{' || first == '[') return Open(first);
  if (!Rest().starts_with(GemmaTags::kQuote)) {
    return GemmaTags::kQuote.starts_with(Rest()) ? false : Word();
  }
  at_ += GemmaTags::kQuote.size();
  Argument("\"");
  state_ = kString;
  return true;
}

bool GemmaCallParser::Word() {
  const std::string_view rest = Rest();
  const size_t end = rest.find_first_of(",]}");
  if (end == std::string_view::npos && rest.size() <= kLongestWord) return false;
  const std::string_view word = WithoutBlanks(rest.substr(0, end));
  if (end >= kLongestWord || word.empty()) return Broken();
  // Templates repeat None of earlier calls as Python writes it.
  const auto json = JsonOfPython(word);
  Argument(json ? *json : Dump(word));
  at_ += end;
  state_ = kBehindValue;
  return true;
}

bool GemmaCallParser::Quoted(State behind) {
  const std::string_view rest = Rest();
  const size_t end = rest.find(GemmaTags::kQuote);
  const bool ends = end != std::string_view::npos;
  const size_t size = ends ? end : BeforePartOf(GemmaTags::kQuote, rest);
  Argument(Escaped(rest.substr(0, size)));
  at_ += size;
  if (!ends) return false;
  at_ += GemmaTags::kQuote.size();
  Argument("\"");
  state_ = behind;
  return true;
}

bool GemmaCallParser::BehindValue() {
  if (!SkipBlanks()) return false;
  const char next = pending_[at_];
  if (next == (open_.back() == '{' ? '}' : ']')) return CloseBracket();
  if (next != ',') return Broken();
  ++at_;
  comma_ = true;
  state_ = kElement;
  return true;
}

bool GemmaCallParser::End() {
  const std::string_view rest = Rest();
  const size_t blanks = std::min(rest.find_first_not_of(kGemmaBlanks), rest.size());
  const std::string_view behind = rest.substr(blanks);
  if (behind.starts_with(GemmaTags::kClose)) {
    at_ += blanks + GemmaTags::kClose.size();
  } else if (GemmaTags::kClose.starts_with(behind)) {
    return false;
  }
  state_ = kText;
  return true;
}

}  // namespace litecache::server
