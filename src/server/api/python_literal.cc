#include "server/api/python_literal.h"

#include <algorithm>

#include "server/api/json.h"
#include "tokenizer/utf8.h"

namespace litecache::server {
namespace {

constexpr std::string_view kPythonBlanks = " \n\r\t";

// Rewrites a literal as JSON. What it leaves as it is, such as numbers, may be none; the result is
// to be parsed.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  std::optional<std::string> Read() {
    if (!Value(0)) return std::nullopt;
    SkipBlanks();
    return at_ == text_.size() ? std::optional(std::move(json_)) : std::nullopt;
  }

 private:
  static constexpr int kDepth = 128;  // that of JsonLimits

  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void SkipBlanks() { at_ = std::min(text_.find_first_not_of(kPythonBlanks, at_), text_.size()); }

  bool Value(int depth) {
    SkipBlanks();
    const char first = Next();
    if (first == '"' || first == '\'') return String();
    if (first != '[' && first != '(' && first != '{') return Word();
    return depth < kDepth && Elements(depth);
  }

  bool Word() {
    const size_t end = std::min(text_.find_first_of(" \n\r\t,:[](){}'\"", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    json_ += word == "None" ? "null" : word == "True" ? "true" : word == "False" ? "false" : word;
    return !word.empty();
  }

  bool Elements(int depth) {
    const bool dict = Next() == '{';
    const char close = dict ? '}' : Next() == '[' ? ']' : ')';
    ++at_;
    json_ += dict ? '{' : '[';
    for (bool first = true;; first = false) {
      SkipBlanks();
      if (Next() == close) break;
      if (!first) json_ += ", ";
      if (dict && (!IsQuote() || !String() || !Colon())) return false;
      if (!Value(depth + 1)) return false;
      SkipBlanks();
      if (Next() == close) break;
      if (Next() != ',') return false;
      ++at_;
    }
    ++at_;
    json_ += dict ? '}' : ']';
    return true;
  }

  bool IsQuote() const { return Next() == '"' || Next() == '\''; }

  bool Colon() {
    SkipBlanks();
    if (Next() != ':') return false;
    ++at_;
    json_ += ": ";
    return true;
  }

  bool String() {
    const auto size = PythonStringSize(text_.substr(at_));
    if (!size) return false;
    const std::string_view inside = text_.substr(at_ + 1, *size - 2);
    at_ += *size;
    std::string content;
    for (size_t i = 0; i < inside.size(); ++i) {
      if (inside[i] == '\n') return false;
      if (inside[i] != '\\') {
        content += inside[i];
      } else if (!Escape(inside, &i, &content)) {
        return false;
      }
    }
    json_ += Dump(content);
    return true;
  }

  // inside[*i] is the backslash; *i is moved to the end of the escape.
  static bool Escape(std::string_view inside, size_t* i, std::string* content) {
    constexpr std::string_view kShort = "\\'\"abfnrtv", kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char kind = inside[++*i];
    if (const size_t known = kShort.find(kind); known != std::string_view::npos) {
      *content += kMeant[known];
      return true;
    }
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) {  // Python keeps what it does not know
      *content += '\\';
      *content += kind;
      return true;
    }
    const std::string_view hex = inside.substr(*i + 1, digits);
    *i += digits;
    char32_t code = 0;
    for (const char c : hex) {
      const size_t value = std::string_view("0123456789abcdef")
                               .find(static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c));
      if (value == std::string_view::npos) return false;
      code = code << 4 | static_cast<char32_t>(value);
    }
    const bool character = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    if (hex.size() < digits || !character) return false;
    tokenizer::AppendUtf8(code, content);
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string json_;
};

}  // namespace

std::optional<size_t> PythonStringSize(std::string_view text) {
  if (text.empty() || (text[0] != '"' && text[0] != '\'')) return std::nullopt;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == text[0]) return i + 1;
    if (text[i] == '\\') ++i;
  }
  return std::nullopt;
}

std::optional<std::string> JsonOfPython(std::string_view literal) {
  auto json = PythonReader(literal).Read();
  if (!json) return std::nullopt;
  try {
    auto limits = io::JsonLimits::OfRequest();
    io::ParseLimitedJson<Json>(*json, &limits);
  } catch (const io::JsonError&) {
    return std::nullopt;
  }
  return json;
}

}  // namespace litecache::server
