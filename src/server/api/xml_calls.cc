#include "server/api/xml_calls.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "grammar/parameter_tags.h"
#include "grammar/schema_values.h"

namespace litecache::server {
namespace {

using grammar::kParameterEndTag;
using grammar::kParameterTag;

constexpr std::string_view kCallTag = "<tool_call>";
constexpr std::string_view kCallEndTag = "</tool_call>";
constexpr std::string_view kFunctionTag = "<function=";
constexpr std::string_view kFunctionEndTag = "</function>";
constexpr std::array kBegins = {kCallTag, kFunctionTag};
constexpr std::array kInCall = {kParameterTag, kFunctionEndTag, kCallEndTag};
constexpr std::array kBetweenParameters = {kParameterTag, kFunctionEndTag, kCallEndTag, kCallTag,
                                           kFunctionTag};
constexpr std::string_view kXmlBlanks = " \n\r\t";
constexpr size_t kLongestName = 128;  // of functions that a request can offer

// What a text begins with. tag: "" for none of the tags; open: it may yet become one.
struct TagAt {
  std::string_view tag;
  bool open = false;
};

TagAt ReadTag(std::string_view text, std::span<const std::string_view> tags) {
  TagAt at;
  for (const std::string_view tag : tags) {
    if (text.starts_with(tag)) return {tag, false};
    at.open = at.open || tag.starts_with(text);
  }
  return at;
}

// Part of a string in JSON. Bytes are kept: a character may be cut.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped += fmt::format("\\u{:04x}", c);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kXmlBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kXmlBlanks) + 1 - begin);
}

// Python's spelling, with which templates repeat values of earlier calls.
std::string_view FromPython(std::string_view text) {
  return text == "True" ? "true" : text == "False" ? "false" : text == "None" ? "null" : text;
}

// The value as JSON; nothing if it is to be a string. JSON of another type is left for the client
// to refuse, unless the types allow it as a string.
std::optional<std::string> ReadValue(std::string_view text, const std::set<std::string>& types) {
  const std::string_view json = FromPython(Trimmed(text));
  try {
    auto limits = io::JsonLimits::OfRequest();
    const std::string type = grammar::TypeOfValue(io::ParseLimitedJson<Json>(json, &limits));
    const bool listed = types.contains(type) || (type == "integer" && types.contains("number"));
    if (types.contains("string") && (type == "string" || !listed)) return std::nullopt;
    return std::string(json);
  } catch (const io::JsonError&) {
    return std::nullopt;
  }
}

}  // namespace

bool IsXml(std::string_view chat_template) {
  return chat_template.find(kFunctionTag) != std::string_view::npos &&
         chat_template.find(kParameterTag) != std::string_view::npos;
}

void XmlCallParser::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  Run(false, events);
}

void XmlCallParser::Finish(std::vector<ToolEvent>* events) { Run(true, events); }

void XmlCallParser::Run(bool last, std::vector<ToolEvent>* events) {
  events_ = events;
  while (Step(last)) {
  }
  events_ = nullptr;
  pending_.erase(0, at_);
  at_ = 0;
}

bool XmlCallParser::Step(bool last) {
  switch (state_) {
    case kText:
      return Text(last);
    case kOpened:
      return Opened(last);
    case kName:
      return Name(last);
    case kBetween:
      return Between(last);
    case kParameterName:
      return ParameterName();
    case kValue:
      return Value();
    case kAfterValue:
      return AfterValue(last);
    case kAfterCall:
      return AfterCall(last);
  }
  return false;
}

void XmlCallParser::SkipSpace() {
  const size_t end = std::min(pending_.find_first_not_of(kXmlBlanks, at_), pending_.size());
  space_ += pending_.substr(at_, end - at_);
  at_ = end;
}

void XmlCallParser::Emit(ToolEvent::Kind kind, std::string_view text) {
  if (text.empty() || (kind != ToolEvent::kText && calls_ > most_)) return;
  if (kind != ToolEvent::kBegin && !events_->empty() && events_->back().kind == kind) {
    events_->back().text += text;
  } else {
    events_->push_back({kind, std::string(text)});
  }
}

void XmlCallParser::Say(std::string_view text) {
  const size_t end = text.find_last_not_of(kXmlBlanks) + 1;
  if (end > 0) {
    Emit(ToolEvent::kText, std::exchange(space_, {}));
    Emit(ToolEvent::kText, text.substr(0, end));
  }
  space_ += text.substr(end);
}

void XmlCallParser::NoCall() {
  Say(std::exchange(raw_, {}));
  state_ = kText;
}

bool XmlCallParser::Text(bool last) {
  const std::string_view rest = Rest();
  const size_t size = std::min(rest.find('<'), rest.size());
  Say(rest.substr(0, size));
  at_ += size;
  if (size == rest.size()) {
    if (last && calls_ == 0) Emit(ToolEvent::kText, std::exchange(space_, {}));
    return false;
  }
  const TagAt at = ReadTag(Rest(), kBegins);
  if (at.open && !last) return false;
  if (at.tag.empty()) {
    Say("<");
    ++at_;
    return true;
  }
  raw_ = std::exchange(space_, {}) + std::string(at.tag);
  at_ += at.tag.size();
  tagged_ = at.tag == kCallTag;
  state_ = tagged_ ? kOpened : kName;
  return true;
}

bool XmlCallParser::Opened(bool last) {
  SkipSpace();
  raw_ += std::exchange(space_, {});
  const TagAt at = ReadTag(Rest(), std::array{kFunctionTag});
  if (at.open && !last) return false;
  if (at.tag.empty()) {
    NoCall();
    return true;
  }
  raw_ += kFunctionTag;
  at_ += kFunctionTag.size();
  state_ = kName;
  return true;
}

bool XmlCallParser::Name(bool last) {
  const std::string_view rest = Rest();
  const size_t end = rest.find_first_of("<> \n\r\t");
  if (end == std::string_view::npos && rest.size() <= kLongestName && !last) return false;
  const std::string_view name = rest.substr(0, end);
  const bool complete = end != std::string_view::npos && rest[end] == '>';
  const auto function = types_->find(name);
  // Without <tool_call>, only the name shows whether it is a call.
  if (!complete || name.empty() || name.size() > kLongestName ||
      (!tagged_ && function == types_->end())) {
    NoCall();
    return true;
  }
  raw_.clear();
  arguments_ = function != types_->end() ? &function->second : nullptr;
  written_.clear();
  any_ = false;
  ++calls_;
  Emit(ToolEvent::kBegin, name);
  at_ += end + 1;
  state_ = kBetween;
  return true;
}

bool XmlCallParser::Between(bool last) {
  at_ = std::min(pending_.find('<', at_), pending_.size());
  if (at_ == pending_.size()) return false;
  const TagAt at = ReadTag(Rest(), kBetweenParameters);
  if (at.open && !last) return false;
  if (at.tag == kParameterTag) {
    at_ += kParameterTag.size();
    name_.clear();
    state_ = kParameterName;
  } else if (at.tag.empty()) {
    ++at_;
  } else {
    Emit(ToolEvent::kArguments, any_ ? "}" : "{}");
    if (at.tag == kFunctionEndTag) at_ += kFunctionEndTag.size();
    state_ = kAfterCall;
  }
  return true;
}

bool XmlCallParser::ParameterName() {
  const std::string_view rest = Rest();
  const size_t size = std::min(rest.find_first_of("<>\n"), rest.size());
  name_ += rest.substr(0, size);
  at_ += size;
  if (size == rest.size()) return false;
  state_ = kBetween;
  if (rest[size] == '>' && !name_.empty()) {
    ++at_;
    BeginValue();
  }
  return true;
}

std::string XmlCallParser::BeforeValue() {
  return (std::exchange(any_, true) ? ", " : "{") + Dump(name_) + ": ";
}

void XmlCallParser::BeginValue() {
  value_types_ = nullptr;
  if (arguments_ != nullptr) {
    const auto found = arguments_->find(name_);
    const bool text =
        found == arguments_->end() || found->second == std::set<std::string>{"string"};
    if (!text) value_types_ = &found->second;
  }
  repeated_ = !written_.insert(name_).second;
  first_ = empty_ = true;
  newline_ = false;
  value_.clear();
  state_ = kValue;
  if (value_types_ == nullptr && !repeated_) Emit(ToolEvent::kArguments, BeforeValue() + '"');
}

void XmlCallParser::AddToValue(std::string_view text) {
  if (text.empty()) return;
  empty_ = false;
  const bool newline = std::exchange(newline_, text.ends_with('\n'));
  if (newline_) text.remove_suffix(1);
  if (repeated_) return;
  if (value_types_ == nullptr) {
    Emit(ToolEvent::kArguments, (newline ? "\\n" : "") + Escaped(text));
  } else {
    if (newline) value_ += '\n';
    value_ += text;
  }
}

void XmlCallParser::EndValue() {
  state_ = kBetween;
  if (repeated_) return;
  if (value_types_ == nullptr) return Emit(ToolEvent::kArguments, "\"");
  const auto json = ReadValue(value_, *value_types_);
  Emit(ToolEvent::kArguments, BeforeValue() + (json ? *json : '"' + Escaped(value_) + '"'));
  value_.clear();
}

bool XmlCallParser::Value() {
  if (first_) {
    if (Rest().empty()) return false;
    if (Rest().starts_with('\n')) ++at_;
    first_ = false;
  }
  const std::string_view rest = Rest();
  const size_t size = std::min(rest.find('<'), rest.size());
  AddToValue(rest.substr(0, size));
  at_ += size;
  if (size == rest.size()) return false;
  const TagAt at = ReadTag(Rest(), std::array{kParameterEndTag});
  if (at.open) return false;
  if (at.tag.empty()) {
    AddToValue("<");
    ++at_;
    return true;
  }
  at_ += kParameterEndTag.size();
  if (newline_ || empty_) {
    EndValue();
  } else {
    space_.clear();
    state_ = kAfterValue;
  }
  return true;
}

bool XmlCallParser::AfterValue(bool last) {
  SkipSpace();
  const TagAt at = ReadTag(Rest(), kInCall);
  if (at.open && !last) return false;
  if (at.open || !at.tag.empty()) {
    space_.clear();
    EndValue();
    return true;
  }
  AddToValue(kParameterEndTag);
  AddToValue(std::exchange(space_, {}));
  state_ = kValue;
  return true;
}

bool XmlCallParser::AfterCall(bool last) {
  SkipSpace();
  const TagAt at = ReadTag(Rest(), std::array{kCallEndTag});
  if (at.open && !last) return false;
  if (!at.tag.empty()) {
    space_.clear();
    at_ += kCallEndTag.size();
  }
  state_ = kText;
  return true;
}

}  // namespace litecache::server
