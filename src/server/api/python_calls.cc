#include "server/api/python_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api/json.h"
#include "server/api/python_literal.h"

namespace litecache::server {
namespace {

constexpr std::string_view kBlanksBetween = " \n\r\t";
constexpr std::string_view kNoName = " \n\r\t()=,<>\"'[]{}";  // characters that no name has
constexpr size_t kLongestPythonName = 200;

std::string_view WithoutBlanksAround(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanksBetween), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanksBetween) + 1);
}

// A value as JSON, which it may be already; unset: it is neither that nor Python's.
std::optional<std::string> ValueAsJson(std::string_view text) {
  try {
    auto limits = io::JsonLimits::OfRequest();
    io::ParseLimitedJson<Json>(text, &limits);
    return std::string(text);
  } catch (const io::JsonError&) {
    return JsonOfPython(text);
  }
}

}  // namespace

std::string PythonTags::AllTags() { return fmt::format("{}{}", kOpen, kClose); }

bool PythonCallParser::Step(bool last) {
  switch (state_) {
    case kText:
      return Text(last);
    case kFunction:
      return Function(last);
    case kArgument:
      return Argument();
    case kValue:
      return Value();
  }
  return false;
}

bool PythonCallParser::SkipBlanks() {
  const size_t end = std::min(pending_.find_first_not_of(kBlanksBetween, at_), pending_.size());
  raw_ += pending_.substr(at_, end - at_);
  at_ = end;
  return at_ < pending_.size();
}

bool PythonCallParser::Text(bool last) {
  at_ += text_.Take(Rest(), last, calls_ > 0, events_);
  if (!text_.opened()) return false;
  raw_ = text_.TakeRaw();
  state_ = kFunction;
  return true;
}

bool PythonCallParser::Function(bool last) {
  if (!SkipBlanks() && !last) return false;
  const std::string_view rest = Rest();
  if (rest.starts_with(PythonTags::kClose) && raw_.find(PythonTags::kOpen) == std::string::npos) {
    at_ += PythonTags::kClose.size();
    state_ = kText;
    return true;
  }
  if (!last && PythonTags::kClose.starts_with(rest)) return false;
  const size_t end = std::min(rest.find_first_of(kNoName), rest.size());
  if (end == rest.size() && end <= kLongestPythonName && !last) return false;
  if (end == 0 || end > kLongestPythonName || end == rest.size() || rest[end] != '(') {
    Emit(ToolEvent::kText, std::exchange(raw_, {}));
    state_ = kText;
    return true;
  }
  ++calls_;
  any_ = false;
  Emit(ToolEvent::kBegin, rest.substr(0, end));
  at_ += end + 1;
  state_ = kArgument;
  return true;
}

bool PythonCallParser::Argument() {
  if (!SkipBlanks()) return false;
  const std::string_view rest = Rest();
  if (rest[0] == ',') {
    ++at_;
    return true;
  }
  if (rest[0] == ')') {
    ++at_;
    Emit(ToolEvent::kArguments, any_ ? "}" : "{}");
    raw_.clear();  // the next call needs no tag before it
    state_ = kFunction;
    return true;
  }
  const size_t end = rest.find_first_of("=(),");
  if (end == std::string_view::npos && rest.size() <= kLongestPythonName) return false;
  const std::string_view name = WithoutBlanksAround(rest.substr(0, end));
  if (end == std::string_view::npos || end > kLongestPythonName || rest[end] != '=' ||
      name.empty()) {
    state_ = kText;  // no arguments: the call ends here
    return true;
  }
  Emit(ToolEvent::kArguments, (std::exchange(any_, true) ? ", " : "{") + Dump(name) + ": ");
  at_ += end + 1;
  read_ = 0;
  depth_ = 0;
  quote_ = '\0';
  state_ = kValue;
  return true;
}

bool PythonCallParser::Value() {
  const std::string_view rest = Rest();
  for (; read_ < rest.size(); ++read_) {
    const char c = rest[read_];
    if (quote_ != '\0') {
      if (c == '\\') {
        if (read_ + 1 == rest.size()) return false;
        ++read_;
      } else if (c == quote_) {
        quote_ = '\0';
      }
    } else if (c == '"' || c == '\'') {
      quote_ = c;
    } else if (depth_ == 0 && (c == ',' || c == ')')) {
      break;
    } else {
      depth_ += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    }
  }
  if (read_ == rest.size()) return false;
  const std::string_view text = WithoutBlanksAround(rest.substr(0, read_));
  const auto json = ValueAsJson(text);
  // A word that is no value is a string.
  Emit(ToolEvent::kArguments, json ? *json : Dump(text));
  at_ += read_;
  state_ = kArgument;
  return true;
}

}  // namespace litecache::server
