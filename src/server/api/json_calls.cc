#include "server/api/json_calls.h"

#include <algorithm>
#include <utility>

namespace litecache::server {
namespace {

constexpr std::string_view kPythonTag = "<|python_tag|>";  // Llama's models may begin with it
constexpr std::string_view kJsonBlanks = " \n\t\r";

size_t SkipBlanks(std::string_view text, size_t at = 0) {
  return std::min(text.find_first_not_of(kJsonBlanks, at), text.size());
}

}  // namespace

JsonCallParser::JsonCallParser(const JsonTags& tags, std::set<std::string> names, int most)
    : tags_(tags), names_(std::move(names)), most_(most), text_(tags.open), scanner_(tags.name) {}

void JsonCallParser::Add(std::string_view piece, std::vector<ToolEvent>* events) {
  pending_ += piece;
  while (Step(events, false)) {
  }
}

void JsonCallParser::Finish(std::vector<ToolEvent>* events) {
  while (Step(events, true)) {
  }
}

bool JsonCallParser::Step(std::vector<ToolEvent>* events, bool last) {
  switch (state_) {
    case kText:
      return Text(events, last);
    case kOpened:
      return Opened(events, last);
    case kElement:
      return Element(last);
    case kCall:
      return Call(events, last);
    case kAfterCall:
      return AfterCall();
    case kBeforeClose:
      return BeforeClose();
  }
  return false;
}

void JsonCallParser::BeginCall() {
  scanner_ = CallScanner(tags_.name);
  begun_ = has_arguments_ = bare_name_ = false;
  state_ = kCall;
}

void JsonCallParser::Take(size_t size) {
  raw_ += pending_.substr(0, size);
  pending_.erase(0, size);
}

void JsonCallParser::Say(std::string text, std::vector<ToolEvent>* events) {
  if (!text.empty()) events->push_back({ToolEvent::kText, std::move(text)});
}

bool JsonCallParser::Text(std::vector<ToolEvent>* events, bool last) {
  if (only_text_) {
    Say(std::exchange(pending_, {}), events);
    return false;
  }
  if (tags_.open.empty()) return WholeAnswer(events, last);
  pending_.erase(0, text_.Take(pending_, last, calls_ > 0, events));
  if (!text_.opened()) return false;
  raw_ = text_.TakeRaw();
  state_ = kOpened;
  return true;
}

bool JsonCallParser::WholeAnswer(std::vector<ToolEvent>* events, bool last) {
  size_t at = SkipBlanks(pending_);
  while (calls_ > 0 && at < pending_.size() && (pending_[at] == ';' || pending_[at] == ',')) {
    at = SkipBlanks(pending_, at + 1);
  }
  const std::string_view rest = std::string_view(pending_).substr(at);
  if (!last && rest.size() < kPythonTag.size() && kPythonTag.starts_with(rest)) return false;
  if (rest.starts_with(kPythonTag)) at = SkipBlanks(pending_, at + kPythonTag.size());
  if (at == pending_.size()) {
    if (last && calls_ == 0) Say(std::exchange(pending_, {}), events);
    return false;
  }
  if (pending_[at] != '{') {
    only_text_ = true;
    return true;
  }
  raw_.clear();
  Take(at);
  list_ = false;
  BeginCall();
  return true;
}

bool JsonCallParser::Opened(std::vector<ToolEvent>* events, bool last) {
  Take(SkipBlanks(pending_));
  if (pending_.empty() && !last) return false;
  list_ = pending_.starts_with('[');
  if (list_) {
    Take(1);
    state_ = kElement;
    return true;
  }
  if (!tags_.behind_name.empty() && !pending_.starts_with('{')) return BareName(events, last);
  BeginCall();
  return true;
}

bool JsonCallParser::BareName(std::vector<ToolEvent>* events, bool last) {
  constexpr size_t kLongest = 300;
  const size_t end = pending_.find_first_of("[{"), brace = pending_.find('{');
  if (brace == std::string::npos && !last && pending_.size() < kLongest) return false;
  // The name ends at [ARGS], or at an id between [CALL_ID] and that.
  const std::string name = brace < kLongest ? pending_.substr(0, end) : "";
  if (name.find_first_not_of(kJsonBlanks) == std::string::npos ||
      name.find_first_of(kJsonBlanks) != std::string::npos) {
    state_ = kText;
    Say(std::exchange(raw_, {}), events);
    return !pending_.empty();
  }
  Take(brace);
  BeginCall();
  bare_name_ = true;
  for (const char c : JsonTags{}.BeforeArguments(name)) scanner_.Add(c);
  return true;
}

bool JsonCallParser::Element(bool last) {
  const size_t at = SkipBlanks(pending_);
  if (at == pending_.size() && !last) return false;
  if (at < pending_.size() && pending_[at] == ']') {  // a list without calls
    pending_.erase(0, at);
    state_ = kAfterCall;
    return true;
  }
  BeginCall();
  return true;
}

bool JsonCallParser::Call(std::vector<ToolEvent>* events, bool last) {
  auto status = CallScanner::kMore;
  size_t used = 0;
  while (used < pending_.size() && status == CallScanner::kMore) {
    status = scanner_.Add(pending_[used++]);
    if (bare_name_ && scanner_.after_value()) status = scanner_.Add('}');
    if (scanner_.has_name() && !begun_) {
      // If the answer is JSON in any case, only the name shows whether it is a call.
      if (tags_.open.empty() && !names_.contains(scanner_.name())) {
        status = CallScanner::kFailed;
        break;
      }
      begun_ = true;
      ++calls_;
      if (calls_ <= most_) events->push_back({ToolEvent::kBegin, scanner_.name()});
    }
  }
  Take(used);
  if (begun_) {
    std::string arguments = scanner_.TakeArguments();
    if (arguments.empty() && status == CallScanner::kDone && !has_arguments_) arguments = "{}";
    if (!arguments.empty()) {
      has_arguments_ = true;
      if (calls_ <= most_) events->push_back({ToolEvent::kArguments, std::move(arguments)});
    }
  }
  if (status == CallScanner::kDone) {
    raw_.clear();
    state_ = kAfterCall;
    return true;
  }
  if (status == CallScanner::kMore && !last) return false;
  if (!begun_) {
    Say(std::exchange(raw_, {}), events);
    only_text_ = tags_.open.empty();
  }
  state_ = kText;
  return !pending_.empty();
}

bool JsonCallParser::AfterCall() {
  state_ = kBeforeClose;
  if (!list_) return true;
  const size_t at = SkipBlanks(pending_);
  if (at == pending_.size()) {
    state_ = kAfterCall;
    return false;
  }
  const char next = pending_[at];
  if (next == ',' || next == ']') pending_.erase(0, at + 1);
  if (next == ',') BeginCall();
  return true;
}

bool JsonCallParser::BeforeClose() {
  if (!tags_.close.empty()) {
    const size_t at = SkipBlanks(pending_);
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (rest.size() < tags_.close.size() && tags_.close.starts_with(rest)) return false;
    if (rest.starts_with('{')) {  // a further call behind the same tag
      BeginCall();
      return true;
    }
    if (rest.starts_with(tags_.close)) pending_.erase(0, at + tags_.close.size());
  }
  state_ = kText;
  return true;
}

}  // namespace litecache::server
