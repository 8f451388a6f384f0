#include "server/api/call_scanner.h"

#include <optional>
#include <utility>

#include "server/api/json.h"

namespace litecache::server {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// The content of a JSON string; none for other values.
std::optional<std::string> StringValue(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  try {
    io::JsonLimits limits;
    return io::ParseLimitedJson<Json>(json, &limits).get<std::string>();
  } catch (const io::JsonError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

bool CallScanner::IsArguments() const {
  return name_field_.empty() || key_ == "arguments" || key_ == "parameters";
}

bool CallScanner::AddToString(char c) {
  if (escaped_) {
    escaped_ = false;
  } else if (c == '\\') {
    escaped_ = true;
  } else {
    return c == '"';
  }
  return false;
}

bool CallScanner::EndKey() {
  phase_ = kColon;
  if (!name_field_.empty()) return true;
  auto name = StringValue('"' + key_ + '"');
  if (!name || name->empty() || has_name_) return false;
  name_ = std::move(*name);
  has_name_ = true;
  return true;
}

void CallScanner::BeginValue(char c) {
  value_ = c;
  if (IsArguments()) {
    has_arguments_ = true;
    streamed_ = c == '{';
    if (streamed_) arguments_ = c;
  }
  depth_ = 1;
  in_string_ = false;
  phase_ = c == '"' ? kString : c == '{' || c == '[' ? kNested : kBare;
}

bool CallScanner::EndValue() {
  phase_ = kCommaOrEnd;
  auto text = StringValue(value_);
  if (!name_field_.empty() && key_ == name_field_) {
    if (!text || text->empty()) return false;
    name_ = std::move(*text);
    has_name_ = true;
  } else if (IsArguments() && text) {
    arguments_ = std::move(*text);  // some models write the arguments as a string of JSON
  }
  return true;
}

CallScanner::Status CallScanner::CommaOrEnd(char c) {
  if (IsSpace(c)) return kMore;
  if (c == '}') return has_name_ ? kDone : kFailed;
  if (c != ',') return kFailed;
  phase_ = kKeyOrEnd;
  return kMore;
}

CallScanner::Status CallScanner::Add(char c) {
  switch (phase_) {
    case kOpen:
      if (IsSpace(c)) return kMore;
      if (c != '{') return kFailed;
      phase_ = kKeyOrEnd;
      return kMore;
    case kKeyOrEnd:
      if (IsSpace(c)) return kMore;
      if (c == '}') return has_name_ ? kDone : kFailed;
      if (c != '"') return kFailed;
      key_.clear();
      phase_ = kKey;
      return kMore;
    case kKey:
      if (AddToString(c)) return EndKey() ? kMore : kFailed;
      key_ += c;
      return kMore;
    case kColon:
      if (IsSpace(c)) return kMore;
      if (c != ':') return kFailed;
      phase_ = kValue;
      return kMore;
    case kValue:
      if (IsSpace(c)) return kMore;
      if (IsArguments() && has_arguments_) return kFailed;
      BeginValue(c);
      return kMore;
    case kString:
      value_ += c;
      return !AddToString(c) || EndValue() ? kMore : kFailed;
    case kNested:
      value_ += c;
      if (IsArguments() && streamed_) arguments_ += c;
      if (in_string_) {
        in_string_ = !AddToString(c);
        return kMore;
      }
      in_string_ = c == '"';
      depth_ += (c == '{' || c == '[') - (c == '}' || c == ']');
      return depth_ > 0 || EndValue() ? kMore : kFailed;
    case kBare:
      if (!IsSpace(c) && c != ',' && c != '}') {
        value_ += c;
        return kMore;
      }
      return EndValue() ? CommaOrEnd(c) : kFailed;
    case kCommaOrEnd:
      return CommaOrEnd(c);
  }
  return kFailed;
}

}  // namespace litecache::server
