#include "tokenizer/pattern.h"

#include "base/work_limit.h"
#include "tokenizer/json_fields.h"

namespace litecache::tokenizer {

Pattern Pattern::FromString(std::string text) {
  Pattern pattern;
  // The empty string matches between all characters, which only the regex engine handles correctly.
  if (text.empty()) {
    pattern.regex_.emplace("", "an empty pattern");
  }
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::FromRegex(Regex regex) {
  Pattern pattern;
  pattern.regex_ = std::move(regex);
  return pattern;
}

Pattern::Splitter::Splitter(const Pattern& pattern) : pattern_(pattern) {
  if (pattern.regex_) matcher_.emplace(*pattern.regex_);
}

const std::vector<Span>& Pattern::Splitter::Split(std::string_view text) {
  spans_.clear();
  size_t last = 0;
  const auto add_match = [&](size_t begin, size_t end) {
    CheckWork();
    if (last != begin) spans_.push_back({last, begin, false});
    spans_.push_back({begin, end, true});
    last = end;
  };
  if (matcher_) {
    matcher_->Start(text);
    size_t begin = 0;
    size_t end = 0;
    while (!text.empty() && matcher_->Next(&begin, &end)) add_match(begin, end);
  } else {
    const std::string& needle = *pattern_.literal_;
    for (size_t at = text.find(needle); at != std::string_view::npos;
         at = text.find(needle, last)) {
      add_match(at, at + needle.size());
    }
  }
  if (last != text.size()) spans_.push_back({last, text.size(), false});
  return spans_;
}

std::string Pattern::ReplaceAll(std::string_view text, std::string_view content) const {
  std::string out;
  out.reserve(text.size());
  Splitter splitter(*this);
  for (const Span& span : splitter.Split(text)) {
    out += span.is_match ? content : text.substr(span.begin, span.end - span.begin);
  }
  return out;
}

Pattern LoadPattern(const Json& json, std::string_view where) {
  const Json& pattern = RequireField(json, "pattern", where);
  const std::string at = At(where, "pattern");
  if (pattern.is_object() && pattern.size() == 1) {
    if (const Json* text = FindField(pattern, "String")) {
      return Pattern::FromString(AsString(*text, At(at, "String")));
    }
    if (const Json* regex = FindField(pattern, "Regex")) {
      return Pattern::FromRegex(Regex(AsString(*regex, At(at, "Regex")), At(at, "Regex")));
    }
  }
  throw Unsupported("{}: {} is neither {{\"String\": ...}} nor {{\"Regex\": ...}}", at,
                    Shown(pattern));
}

}  // namespace litecache::tokenizer
