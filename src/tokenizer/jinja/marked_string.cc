#include "tokenizer/jinja/marked_string.h"

#include <algorithm>

namespace litecache::tokenizer::jinja {

namespace {
// The first span that ends after `position`.
std::vector<InputSpan>::const_iterator FirstAfter(const std::vector<InputSpan>& spans,
                                                  size_t position) {
  return std::upper_bound(spans.begin(), spans.end(), position,
                          [](size_t p, const InputSpan& span) { return p < span.end; });
}
}  // namespace

bool MarkedString::IsInput(size_t position) const {
  auto span = FirstAfter(input_, position);
  return span != input_.end() && span->begin <= position;
}

void MarkedString::Mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!input_.empty() && input_.back().end == begin) {
    input_.back().end = end;
  } else {
    input_.push_back({begin, end});
  }
}

void MarkedString::Append(std::string_view text, bool input) {
  const size_t begin = text_.size();
  text_.append(text);
  if (input) Mark(begin, text_.size());
}

void MarkedString::Append(const MarkedString& other, size_t begin, size_t end) {
  const size_t base = text_.size();
  text_.append(other.text_, begin, end - begin);
  for (auto span = FirstAfter(other.input_, begin); span != other.input_.end() && span->begin < end;
       ++span) {
    Mark(base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin);
  }
}

MarkedString MarkedString::Sub(size_t begin, size_t end) const {
  MarkedString result;
  result.Append(*this, begin, end);
  return result;
}

}  // namespace litecache::tokenizer::jinja
