#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "tokenizer/jinja/string_literal.h"
#include "tokenizer/jinja/unicode.h"

namespace litecache::tokenizer::jinja {

namespace {

// Operators of two characters come first, so that the longest one is found.
constexpr std::array<std::string_view, 24> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~",
    "[",  "]",  "(",  ")",  "{",  "}",  ">", "<", "=", ".", ":", "|"};

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {
    // Jinja drops one newline at the end of the template.
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> Run() {
    while (position_ < source_.size()) ReadRoot();
    Emit(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw InvalidArgument("chat template line {}: {}", line_, message);
  }

  void Emit(TokenType type, std::string text) {
    Token token;
    token.type = type;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  bool StartsWith(std::string_view prefix, size_t at) const {
    return std::string_view(source_).substr(at, prefix.size()) == prefix;
  }

  // Moves to `end`, counting the lines passed.
  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    if (end > position_) line_starting_ = source_[end - 1] == '\n';
    position_ = end;
  }

  // Skips "%}" and the like; a '-' before it strips the white space that follows.
  void FinishTag(size_t end, bool strip, bool trim_newline) {
    if (strip) {
      end = SkipSpaces(source_, end);
    } else if (trim_newline && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    Advance(end);
  }

  // Emits the text before a tag, without the part removed by '-' or lstrip_blocks.
  void EmitData(size_t begin, size_t end, char sign, bool is_variable) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text = text.substr(0, TrimSpaces(text, 0, text.size()));
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starting_) && SkipSpaces(text, line_begin) == text.size()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) Emit(TokenType::kData, std::string(text));
  }

  // Length of "raw" with its tag end after "{%" and a sign, or 0.
  size_t RawBeginLength(size_t at, bool* strip) const {
    const size_t name = SkipSpaces(source_, at);
    if (!StartsWith("raw", name)) return 0;
    size_t end = SkipSpaces(source_, name + 3);
    *strip = StartsWith("-%}", end);
    if (*strip) return end + 3 - at;
    return StartsWith("%}", end) ? end + 2 - at : 0;
  }

  void ReadRoot() {
    size_t tag = position_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        EmitRest();
        return;
      }
      const char kind = source_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    const size_t body = tag + 2 + (has_sign ? 1 : 0);
    EmitData(position_, tag, has_sign ? sign : '\0', kind == '{');
    Advance(tag);
    if (kind == '%') {
      bool strip = false;
      if (const size_t length = RawBeginLength(body, &strip)) {
        FinishTag(body + length, strip, false);
        ReadRaw();
        return;
      }
    }
    Advance(body);
    if (kind == '#') {
      ReadComment();
    } else if (kind == '%') {
      Emit(TokenType::kBlockBegin, "");
      ReadTag("%}", TokenType::kBlockEnd, true);
    } else {
      Emit(TokenType::kVariableBegin, "");
      ReadTag("}}", TokenType::kVariableEnd, false);
    }
  }

  void EmitRest() {
    Emit(TokenType::kData, source_.substr(position_));
    Advance(source_.size());
  }

  void ReadComment() {
    const size_t end = source_.find("#}", position_);
    if (end == std::string::npos) Fail("missing end of comment '#}'");
    const char sign = end > position_ ? source_[end - 1] : '\0';
    FinishTag(end + 2, sign == '-', sign != '+');
  }

  void ReadRaw() {
    for (size_t tag = source_.find("{%", position_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const bool has_sign = sign == '-' || sign == '+';
      const size_t name = SkipSpaces(source_, tag + 2 + (has_sign ? 1 : 0));
      if (!StartsWith("endraw", name)) continue;
      size_t end = SkipSpaces(source_, name + 6);
      const char end_sign = end < source_.size() ? source_[end] : '\0';
      if (end_sign == '-' || end_sign == '+') ++end;
      if (!StartsWith("%}", end)) continue;
      EmitData(position_, tag, has_sign ? sign : '\0', false);
      FinishTag(end + 2, end_sign == '-', end_sign != '+');
      return;
    }
    Fail("missing end of raw block '{% endraw %}'");
  }

  void ReadTag(std::string_view end_mark, TokenType end_type, bool is_block) {
    std::string open;  // closing brackets expected
    while (position_ < source_.size()) {
      const char c = source_[position_];
      if (open.empty()) {
        const bool signed_end =
            (c == '-' || (is_block && c == '+')) && StartsWith(end_mark, position_ + 1);
        if (signed_end || StartsWith(end_mark, position_)) {
          Emit(end_type, "");
          FinishTag(position_ + end_mark.size() + (signed_end ? 1 : 0), signed_end && c == '-',
                    is_block && !signed_end);
          return;
        }
      }
      const size_t after_spaces = SkipSpaces(source_, position_);
      if (after_spaces != position_) {
        Advance(after_spaces);
      } else if (!ReadNumber() && !ReadName() && !ReadString()) {
        ReadOperator(&open);
      }
    }
    // The parser reports the missing end.
  }

  // Matches (\d+_)*\d+ from `at`; returns its end, or `at` if there is no match.
  size_t DigitsEnd(size_t at) const {
    size_t end = at;
    while (end < source_.size() && (IsAsciiDigit(source_[end]) ||
                                    (source_[end] == '_' && end > at && source_[end - 1] != '_' &&
                                     end + 1 < source_.size() && IsAsciiDigit(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  bool ReadNumber() {
    if (!IsAsciiDigit(source_[position_])) return false;
    const size_t end = DigitsEnd(position_);
    size_t float_end = end;
    if (position_ == 0 || source_[position_ - 1] != '.') {
      if (end < source_.size() && source_[end] == '.') {
        const size_t fraction = DigitsEnd(end + 1);
        if (fraction > end + 1) float_end = fraction;
      }
      if (float_end < source_.size() && (source_[float_end] == 'e' || source_[float_end] == 'E')) {
        size_t exponent = float_end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        const size_t exponent_end = DigitsEnd(exponent);
        if (exponent_end > exponent) float_end = exponent_end;
      }
    }
    if (float_end > end) {
      std::string digits = source_.substr(position_, float_end - position_);
      std::erase(digits, '_');
      Emit(TokenType::kFloat, "");
      tokens_.back().number = std::strtod(digits.c_str(), nullptr);
      Advance(float_end);
      return true;
    }
    ReadInteger(end);
    return true;
  }

  void ReadInteger(size_t decimal_end) {
    int base = 10;
    size_t begin = position_, end = decimal_end;
    if (source_[position_] == '0') {
      const char prefix = position_ + 1 < source_.size() ? source_[position_ + 1] | 0x20 : '\0';
      base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
      if (base != 10) {
        begin += 2;
        end = begin;
        while (end < source_.size() &&
               (std::isxdigit(static_cast<unsigned char>(source_[end])) || source_[end] == '_')) {
          ++end;
        }
      } else if (source_.find_first_not_of("0_", position_) < decimal_end) {
        Fail("a decimal number cannot start with 0");
      }
    }
    std::string digits = source_.substr(begin, end - begin);
    std::erase(digits, '_');
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (result.ec == std::errc::result_out_of_range) Fail("integer over 64 bits is not supported");
    if (digits.empty() || result.ptr != digits.data() + digits.size()) {
      Fail("malformed number '" + source_.substr(position_, end - position_) + "'");
    }
    Emit(TokenType::kInteger, "");
    tokens_.back().integer = value;
    Advance(end);
  }

  bool ReadName() {
    size_t end = position_;
    while (end < source_.size()) {
      size_t next = end;
      if (!IsWordCharacter(NextCodePoint(source_, &next))) break;
      end = next;
    }
    if (end == position_) return false;
    Emit(TokenType::kName, source_.substr(position_, end - position_));
    Advance(end);
    return true;
  }

  bool ReadString() {
    const char quote = source_[position_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) Fail("string without its closing quote");
    const std::string_view body =
        std::string_view(source_).substr(position_ + 1, end - position_ - 1);
    std::string error;
    std::string text = Unescape(body, &error);
    if (!error.empty()) Fail(error);
    Emit(TokenType::kString, std::move(text));
    Advance(end + 1);
    return true;
  }

  void ReadOperator(std::string* open) {
    for (const std::string_view op : kOperators) {
      if (!StartsWith(op, position_)) continue;
      Bracket(op, open);
      Emit(TokenType::kOperator, std::string(op));
      Advance(position_ + op.size());
      return;
    }
    const char c = source_[position_];
    if (c == ',' || c == ';') {
      Emit(TokenType::kOperator, std::string(1, c));
      Advance(position_ + 1);
      return;
    }
    size_t next = position_;
    NextCodePoint(source_, &next);
    Fail("unexpected character '" + source_.substr(position_, next - position_) + "'");
  }

  void Bracket(std::string_view op, std::string* open) const {
    if (op == "(") open->push_back(')');
    if (op == "[") open->push_back(']');
    if (op == "{") open->push_back('}');
    if (op != ")" && op != "]" && op != "}") return;
    if (open->empty()) Fail("unexpected '" + std::string(op) + "'");
    if (open->back() != op[0]) {
      Fail("unexpected '" + std::string(op) + "', expected '" + open->back() + "'");
    }
    open->pop_back();
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  if (!IsValidUtf8(source)) throw InvalidArgument("chat template is not valid UTF-8");
  return Lexer(source).Run();
}

std::string Describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "template data";
    case TokenType::kVariableBegin:
      return "'{{'";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kName:
    case TokenType::kOperator:
      return "'" + token.text + "'";
    case TokenType::kString:
      return "a string";
    case TokenType::kInteger:
    case TokenType::kFloat:
      return "a number";
    case TokenType::kEnd:
      return "end of template";
  }
  return "token";
}

}  // namespace litecache::tokenizer::jinja
