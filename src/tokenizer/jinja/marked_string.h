// Text that records which of its bytes came from a request.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace litecache::tokenizer {

// Half-open range of byte offsets.
struct InputSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const InputSpan&) const = default;
};

namespace jinja {

// UTF-8 text and the sorted, disjoint, non-adjacent byte ranges of it that are input: everything
// from the request (message contents, tool schemas) rather than from the template. Every string
// operation of the interpreter builds its result with Append, so that the marks are preserved by
// concatenation, trimming, slicing, replacing and formatting.
class MarkedString {
 public:
  MarkedString() = default;
  explicit MarkedString(std::string text, bool input = false) : text_(std::move(text)) {
    if (input && !text_.empty()) input_.push_back({0, text_.size()});
  }

  const std::string& text() const { return text_; }
  const std::vector<InputSpan>& input() const { return input_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  bool IsInput(size_t position) const;

  // Set by the `safe` and `escape` filters: HTML that concatenation must not escape again.
  bool markup() const { return markup_; }
  void set_markup(bool markup) { markup_ = markup; }

  void Append(std::string_view text, bool input = false);
  void Append(const MarkedString& other) { Append(other, 0, other.size()); }
  void Append(const MarkedString& other, size_t begin, size_t end);
  void Append(char c, bool input = false) { Append(std::string_view(&c, 1), input); }
  void Reserve(size_t bytes) { text_.reserve(bytes); }

  MarkedString Sub(size_t begin, size_t end) const;

 private:
  void Mark(size_t begin, size_t end);

  std::string text_;
  std::vector<InputSpan> input_;
  bool markup_ = false;
};

}  // namespace jinja
}  // namespace litecache::tokenizer
