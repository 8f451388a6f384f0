#include "server/api/xml_calls.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace litecache::server {
namespace {

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

}  // namespace

XmlCallParser::XmlCallParser(const CallTags& tags, std::shared_ptr<const CallTypes> types, int most)
    : SteppedParser(most), tags_(tags), types_(std::move(types)) {
  const auto given = [](std::vector<std::string_view> all) {
    std::erase(all, "");
    return all;
  };
  begin_ = given({tags.open, tags.function});
  after_call_ = given({tags.close, tags.function});
  between_ = given({tags.parameter.name, tags.function_end, tags.close, tags.open, tags.function});
  // Braces and quotes begin calls as JSON, which a name without an end tag must not be.
  name_breaks_ = tags.name_end.empty() ? "{\"" : tags.name_end.substr(0, 1);
  name_breaks_ += "<>";
  name_breaks_ += kXmlBlanks;
  parameter_breaks_ = "<>\n";
  parameter_breaks_ += tags.parameter.name_end.front();
}

bool XmlCallParser::Step(bool last) {
  switch (state_) {
    case kText:
      return Text(last);
    case kOpened:
      return Opened(last);
    case kName:
      return Name(last);
    case kAfterName:
      return AfterName(last);
    case kBetween:
      return Between(last);
    case kParameterName:
      return ParameterName(last);
    case kBeforeValue:
      return BeforeValue(last);
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
  const TagAt at = ReadTag(Rest(), begin_);
  if (at.open && !last) return false;
  if (at.tag.empty()) {
    Say("<");
    ++at_;
    return true;
  }
  raw_ = std::exchange(space_, {}) + std::string(at.tag);
  at_ += at.tag.size();
  tagged_ = at.tag == tags_.open;
  state_ = tagged_ ? kOpened : kName;
  return true;
}

bool XmlCallParser::Opened(bool last) {
  SkipSpace();
  raw_ += std::exchange(space_, {});
  if (Rest().empty() && !last) return false;
  if (!tags_.function.empty()) {
    const TagAt at = ReadTag(Rest(), std::array{tags_.function});
    if (at.open && !last) return false;
    if (at.tag.empty()) {
      NoCall();
      return true;
    }
    raw_ += at.tag;
    at_ += at.tag.size();
  }
  state_ = kName;
  return true;
}

bool XmlCallParser::Name(bool last) {
  const std::string_view rest = Rest();
  const size_t end = rest.find_first_of(name_breaks_);
  if (end == std::string_view::npos && rest.size() <= kLongestName && !last) return false;
  name_ = rest.substr(0, end);
  if (end == std::string_view::npos || name_.empty() || name_.size() > kLongestName) {
    NoCall();
    return true;
  }
  raw_ += name_;
  at_ += end;
  state_ = kAfterName;
  return true;
}

bool XmlCallParser::AfterName(bool last) {
  const bool own_tag = !tags_.name_end.empty();
  if (!own_tag) {
    SkipSpace();
    raw_ += std::exchange(space_, {});
  }
  const TagAt at =
      own_tag ? ReadTag(Rest(), std::array{tags_.name_end}) : ReadTag(Rest(), between_);
  if (at.open && !last) return false;
  const auto function = types_->find(name_);
  const bool offered = function != types_->end();
  // Without the tag before it, or where the answer ends, only the name shows whether it is a call.
  const bool call = at.tag.empty() ? at.open && !own_tag && offered : tagged_ || offered;
  if (!call) {
    NoCall();
    return true;
  }
  raw_.clear();
  arguments_ = offered ? &function->second : nullptr;
  written_.clear();
  any_ = false;
  ++calls_;
  Emit(ToolEvent::kBegin, name_);
  if (own_tag) at_ += at.tag.size();
  state_ = kBetween;
  return true;
}

bool XmlCallParser::Between(bool last) {
  at_ = std::min(pending_.find('<', at_), pending_.size());
  if (at_ == pending_.size()) return false;
  const TagAt at = ReadTag(Rest(), between_);
  if (at.open && !last) return false;
  if (at.tag == tags_.parameter.name) {
    at_ += at.tag.size();
    name_.clear();
    state_ = kParameterName;
  } else if (at.tag.empty()) {
    ++at_;
  } else {
    Emit(ToolEvent::kArguments, any_ ? "}" : "{}");
    if (at.tag == tags_.function_end) at_ += at.tag.size();
    state_ = kAfterCall;
  }
  return true;
}

bool XmlCallParser::ParameterName(bool last) {
  const std::string_view rest = Rest();
  const size_t size = std::min(rest.find_first_of(parameter_breaks_), rest.size());
  name_ += rest.substr(0, size);
  at_ += size;
  if (size == rest.size()) return false;
  const TagAt at = ReadTag(Rest(), std::array{tags_.parameter.name_end});
  if (at.open && !last) return false;
  state_ = kBetween;
  if (at.tag.empty() || name_.empty()) return true;
  at_ += at.tag.size();
  if (tags_.parameter.value.empty()) {
    BeginValue();
  } else {
    state_ = kBeforeValue;
  }
  return true;
}

bool XmlCallParser::BeforeValue(bool last) {
  SkipSpace();
  space_.clear();
  const TagAt at = ReadTag(Rest(), std::array{tags_.parameter.value});
  if (at.open && !last) return false;
  state_ = kBetween;
  if (at.tag.empty()) return true;
  at_ += at.tag.size();
  BeginValue();
  return true;
}

std::string XmlCallParser::Key() {
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
  if (value_types_ == nullptr && !repeated_) Emit(ToolEvent::kArguments, Key() + '"');
}

void XmlCallParser::AddToValue(std::string_view text) {
  if (text.empty()) return;
  empty_ = false;
  const bool newline = std::exchange(newline_, tags_.parameter.lines && text.ends_with('\n'));
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
  Emit(ToolEvent::kArguments, Key() + (json ? *json : '"' + Escaped(value_) + '"'));
  value_.clear();
}

bool XmlCallParser::Value() {
  if (first_) {
    if (Rest().empty()) return false;
    if (tags_.parameter.lines && Rest().starts_with('\n')) ++at_;
    first_ = false;
  }
  const std::string_view rest = Rest();
  const size_t size = std::min(rest.find('<'), rest.size());
  AddToValue(rest.substr(0, size));
  at_ += size;
  if (size == rest.size()) return false;
  const TagAt at = ReadTag(Rest(), std::array{tags_.parameter.end});
  if (at.open) return false;
  if (at.tag.empty()) {
    AddToValue("<");
    ++at_;
    return true;
  }
  at_ += at.tag.size();
  if (tags_.parameter.lines && (newline_ || empty_)) {
    EndValue();
  } else {
    space_.clear();
    state_ = kAfterValue;
  }
  return true;
}

bool XmlCallParser::AfterValue(bool last) {
  SkipSpace();
  const TagAt at = ReadTag(Rest(), between_);
  if (at.open && !last) return false;
  if (at.open || !at.tag.empty()) {
    space_.clear();
    EndValue();
    return true;
  }
  AddToValue(tags_.parameter.end);
  AddToValue(std::exchange(space_, {}));
  state_ = kValue;
  return true;
}

bool XmlCallParser::AfterCall(bool last) {
  SkipSpace();
  const TagAt at = ReadTag(Rest(), after_call_);
  if (at.open && !last) return false;
  state_ = kText;
  if (at.tag == tags_.close) {
    space_.clear();
  } else if (!at.tag.empty()) {  // a further function behind the same tag
    raw_ = std::exchange(space_, {}) + std::string(at.tag);
    state_ = kName;
  }
  at_ += at.tag.size();
  return true;
}

}  // namespace litecache::server
