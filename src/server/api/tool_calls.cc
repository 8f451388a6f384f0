#include "server/api/tool_calls.h"

#include <algorithm>
#include <utility>

#include "server/api/call_tags.h"
#include "server/api/harmony.h"
#include "server/api/json.h"

namespace litecache::server {
namespace {

constexpr std::string_view kOpenTag = "<tool_call>";
constexpr std::string_view kCloseTag = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralTag = "[TOOL_CALLS]";

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t SkipSpace(std::string_view text, size_t at = 0) {
  while (at < text.size() && IsSpace(text[at])) ++at;
  return at;
}

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

// Start of the trailing white space and partial tag at the end of `text`.
size_t HeldFrom(std::string_view text, std::string_view tag) {
  size_t tag_begin = text.size();
  for (size_t size = std::min(tag.size() - 1, text.size()); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) {
      tag_begin = text.size() - size;
      break;
    }
  }
  while (tag_begin > 0 && IsSpace(text[tag_begin - 1])) --tag_begin;
  return tag_begin;
}

}  // namespace

ToolFormat DetectToolFormat(std::string_view chat_template) {
  const auto has = [&](std::string_view part) {
    return chat_template.find(part) != std::string_view::npos;
  };
  if (IsHarmony(chat_template)) return ToolFormat::kHarmony;
  if (!has("tools")) return ToolFormat::kNone;
  if (has(kMistralTag)) return ToolFormat::kMistral;
  if (const auto format = DetectCallTags(chat_template)) return *format;
  if (has(kOpenTag)) return ToolFormat::kHermes;
  if (has(kPythonTag) || has("\"parameters\": ")) return ToolFormat::kLlama;
  return ToolFormat::kPlain;
}

std::string BeforeArguments(ToolFormat format, const std::string& name) {
  if (format == ToolFormat::kHarmony) return BeforeHarmonyArguments(name);
  if (const CallTags* tags = CallTagsOf(format)) return tags->BeforeArguments(name);
  const char* tag = format == ToolFormat::kHermes    ? "<tool_call>\n"
                    : format == ToolFormat::kMistral ? "[TOOL_CALLS]["
                                                     : "";
  return tag + ("{\"name\": " + Json(name).dump()) +
         (format == ToolFormat::kLlama ? ", \"parameters\": " : ", \"arguments\": ");
}

std::string AfterArguments(ToolFormat format) {
  if (const CallTags* tags = CallTagsOf(format)) return tags->AfterArguments();
  return format == ToolFormat::kHermes    ? "}\n</tool_call>"
         : format == ToolFormat::kMistral ? "}]"
         : format == ToolFormat::kHarmony ? ""
                                          : "}";
}

std::optional<std::string> CallSeparator(ToolFormat format) {
  if (const CallTags* tags = CallTagsOf(format)) return tags->Separator();
  return format == ToolFormat::kHermes ? std::optional("\n") : std::nullopt;
}

bool ToolCallParser::CallScanner::AddToString(char c) {
  if (escaped_) {
    escaped_ = false;
  } else if (c == '\\') {
    escaped_ = true;
  } else {
    return c == '"';
  }
  return false;
}

bool ToolCallParser::CallScanner::EndValue() {
  phase_ = kCommaOrEnd;
  auto text = StringValue(value_);
  if (key_ == "name") {
    if (!text) return false;
    name_ = std::move(*text);
    has_name_ = true;
  } else if (IsArguments() && text) {
    arguments_ = std::move(*text);  // some models write the arguments as a string of JSON
  }
  return true;
}

ToolCallParser::CallScanner::Status ToolCallParser::CallScanner::Add(char c) {
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
      if (AddToString(c)) {
        phase_ = kColon;
      } else {
        key_ += c;
      }
      return kMore;
    case kColon:
      if (IsSpace(c)) return kMore;
      if (c != ':') return kFailed;
      phase_ = kValue;
      return kMore;
    case kValue:
      if (IsSpace(c)) return kMore;
      value_ = c;
      if (IsArguments()) {
        if (has_arguments_) return kFailed;
        has_arguments_ = true;
        streamed_ = c == '{';
        if (streamed_) arguments_ = c;
      }
      depth_ = 1;
      in_string_ = false;
      phase_ = c == '"' ? kString : c == '{' || c == '[' ? kNested : kBare;
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
      if (!EndValue()) return kFailed;
      [[fallthrough]];
    case kCommaOrEnd:
      if (IsSpace(c)) return kMore;
      if (c == '}') return has_name_ ? kDone : kFailed;
      if (c != ',') return kFailed;
      phase_ = kKeyOrEnd;
      return kMore;
  }
  return kFailed;
}

std::string ToolCallParser::CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

ToolCallParser::ToolCallParser(ToolFormat format, std::set<std::string> names, int most)
    : format_(format), names_(std::move(names)), most_(most) {}

void ToolCallParser::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  while (Step(events, false)) continue;
}

void ToolCallParser::Finish(std::vector<ToolEvent>* events) {
  while (Step(events, true)) continue;
}

bool ToolCallParser::Step(std::vector<ToolEvent>* events, bool last) {
  switch (state_) {
    case kText:
      return Text(events, last);
    case kHeader:
      return Header(events, last);
    case kCall:
      return Call(events, last);
    case kAfter:
      return After();
  }
  return false;
}

std::string_view ToolCallParser::Tag() const {
  return format_ == ToolFormat::kHermes    ? kOpenTag
         : format_ == ToolFormat::kMistral ? kMistralTag
                                           : std::string_view();
}

void ToolCallParser::BeginCall(std::string raw) {
  raw_ = std::move(raw);
  scanner_ = {};
  begun_ = has_arguments_ = bare_ = false;
  state_ = kCall;
}

void ToolCallParser::Say(std::string text, std::vector<ToolEvent>* events) {
  if (!text.empty()) events->push_back({ToolEvent::kText, std::move(text)});
}

bool ToolCallParser::Text(std::vector<ToolEvent>* events, bool last) {
  if (only_text_) {
    Say(std::exchange(pending_, {}), events);
    return false;
  }
  if (const std::string_view tag = Tag(); !tag.empty()) {
    const size_t at = pending_.find(tag);
    if (at != std::string::npos) {
      // White space before a call is a separator, not part of the text.
      const size_t end = HeldFrom(std::string_view(pending_).substr(0, at), tag);
      Say(pending_.substr(0, end), events);
      pending_.erase(0, at + tag.size());
      BeginCall(std::string(tag));
      list_ = false;
      if (format_ == ToolFormat::kMistral) state_ = kHeader;
      return true;
    }
    size_t end = last ? pending_.size() : HeldFrom(pending_, tag);
    if (last && calls_ > 0 && SkipSpace(pending_) == pending_.size()) end = 0;
    Say(pending_.substr(0, end), events);
    pending_.erase(0, last ? pending_.size() : end);
    return false;
  }
  // The whole answer is either a call or text.
  size_t at = SkipSpace(pending_);
  while (calls_ > 0 && at < pending_.size() && (pending_[at] == ';' || pending_[at] == ',')) {
    at = SkipSpace(pending_, at + 1);
  }
  const std::string_view rest = std::string_view(pending_).substr(at);
  if (!last && kPythonTag.starts_with(rest.substr(0, kPythonTag.size())) &&
      rest.size() < kPythonTag.size()) {
    return false;
  }
  if (rest.starts_with(kPythonTag)) at += kPythonTag.size();
  at = SkipSpace(pending_, at);
  if (at == pending_.size()) {
    if (last && calls_ == 0) Say(std::exchange(pending_, {}), events);
    return false;
  }
  if (pending_[at] != '{') {
    only_text_ = true;
    return true;
  }
  BeginCall(pending_.substr(0, at));
  pending_.erase(0, at);
  return true;
}

bool ToolCallParser::Header(std::vector<ToolEvent>* events, bool last) {
  constexpr size_t kLongest = 300;
  const size_t at = SkipSpace(pending_);
  const size_t end = pending_.find_first_of("[{", at), brace = pending_.find('{', at);
  state_ = kCall;
  if (end == at) {  // a list of calls, or one
    list_ = pending_[at] == '[';
    raw_ += pending_.substr(0, at + (list_ ? 1 : 0));
    pending_.erase(0, at + (list_ ? 1 : 0));
    return true;
  }
  if (brace == std::string::npos && !last && pending_.size() < kLongest) {
    state_ = kHeader;
    return false;
  }
  // The name ends at [ARGS], or at an id between [CALL_ID] and that.
  const std::string name = brace < kLongest ? pending_.substr(at, end - at) : "";
  if (name.empty() || std::any_of(name.begin(), name.end(), IsSpace)) {
    state_ = kText;
    Say(std::exchange(raw_, {}), events);
    return !pending_.empty();
  }
  raw_ += pending_.substr(0, brace);
  pending_.erase(0, brace);
  for (const char c : BeforeArguments(ToolFormat::kPlain, name)) scanner_.Add(c);
  bare_ = true;
  return true;
}

bool ToolCallParser::Call(std::vector<ToolEvent>* events, bool last) {
  auto status = CallScanner::kMore;
  size_t used = 0;
  while (used < pending_.size() && status == CallScanner::kMore) {
    status = scanner_.Add(pending_[used++]);
    if (bare_ && scanner_.after_value()) status = scanner_.Add('}');
    if (scanner_.has_name() && !begun_) {
      // If the answer is JSON in any case, only the name shows whether it is a call.
      if (Tag().empty() && !names_.contains(scanner_.name())) {
        status = CallScanner::kFailed;
        break;
      }
      begun_ = true;
      ++calls_;
      if (calls_ <= most_) events->push_back({ToolEvent::kBegin, scanner_.name()});
    }
  }
  raw_ += pending_.substr(0, used);
  pending_.erase(0, used);
  if (begun_) {
    std::string arguments = scanner_.TakeArguments();
    if (arguments.empty() && status == CallScanner::kDone && !has_arguments_) arguments = "{}";
    if (!arguments.empty()) {
      has_arguments_ = true;
      if (calls_ <= most_) events->push_back({ToolEvent::kArguments, std::move(arguments)});
    }
  }
  if (status == CallScanner::kDone) {
    state_ = kAfter;
    return true;
  }
  if (status == CallScanner::kMore && !last) return false;
  if (!begun_) {
    Say(std::exchange(raw_, {}), events);
    if (Tag().empty()) only_text_ = true;
  }
  state_ = kText;
  return !pending_.empty();
}

bool ToolCallParser::After() {
  if (format_ == ToolFormat::kHermes) {
    const size_t at = SkipSpace(pending_);
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (rest.size() < kCloseTag.size() && kCloseTag.starts_with(rest)) return false;
    if (rest.starts_with(kCloseTag)) pending_.erase(0, at + kCloseTag.size());
  } else if (list_) {
    const size_t at = SkipSpace(pending_);
    if (at == pending_.size()) return false;
    const char next = pending_[at];
    if (next == ',' || next == ']') pending_.erase(0, at + 1);
    list_ = next == ',';
    if (list_) {
      BeginCall("");
      return true;
    }
  }
  state_ = kText;
  return true;
}

}  // namespace litecache::server
