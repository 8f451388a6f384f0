#include "cli/options_file.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>

#include "base/error.h"

namespace litecache::cli {
namespace {

constexpr std::string_view kSpace = " \t\r";

// A line, read from its beginning to its end.
class Line {
 public:
  Line(std::string_view text, const std::string& name, int number)
      : text_(text), name_(name), number_(number) {}

  // Whether nothing but a comment is left.
  bool AtEnd() {
    SkipSpace();
    return text_.empty() || text_[0] == '#';
  }
  bool Take(char c) {
    SkipSpace();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  void Expect(char c) {
    if (!Take(c)) Fail(std::string("expected ") + c);
  }
  void ExpectEnd() {
    if (!AtEnd()) Fail("unexpected '" + std::string(text_.substr(0, 40)) + "'");
  }

  // Letters, digits and `others`.
  std::string Word(std::string_view others) {
    SkipSpace();
    const auto end = std::ranges::find_if_not(text_, [&](unsigned char c) {
      return std::isalnum(c) != 0 || others.find(static_cast<char>(c)) != std::string_view::npos;
    });
    const std::string word(text_.begin(), end);
    if (word.empty()) Fail(text_.empty() ? "something is missing at the end" : "expected a name");
    text_.remove_prefix(word.size());
    return word;
  }

  std::string Value() {
    if (Take('\'')) return Until('\'', false);
    if (Take('"')) return Until('"', true);
    return Word("._-+%:/*~@");
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw FileError("{}:{}: {}; write e.g. kv-policy = \"litecache\"", name_, number_, what);
  }

 private:
  void SkipSpace() { text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size())); }

  std::string Until(char quote, bool escapes) {
    std::string value;
    while (!text_.empty() && text_[0] != quote) {
      char c = text_[0];
      text_.remove_prefix(1);
      if (escapes && c == '\\') {
        constexpr std::string_view kNames = "ntr\"\\", kMeant = "\n\t\r\"\\";
        const size_t which = text_.empty() ? std::string_view::npos : kNames.find(text_[0]);
        if (which == std::string_view::npos) Fail("an escape other than \\n \\t \\r \\\" \\\\");
        c = kMeant[which];
        text_.remove_prefix(1);
      }
      value += c;
    }
    if (text_.empty()) Fail("a string has no end");
    text_.remove_prefix(1);
    return value;
  }

  std::string_view text_;
  const std::string& name_;
  int number_;
};

}  // namespace

std::vector<FileOption> ParseOptionsFile(const std::string& text, const std::string& name) {
  std::vector<FileOption> options;
  std::string command;
  std::istringstream lines(text);
  int number = 0;
  for (std::string content; std::getline(lines, content);) {
    Line line(content, name, ++number);
    if (line.AtEnd()) continue;
    if (line.Take('[')) {
      command = line.Word("-_.");
      std::ranges::replace(command, '.', ' ');
      line.Expect(']');
    } else {
      FileOption option{.command = command, .key = line.Word("-_"), .line = number};
      std::ranges::replace(option.key, '_', '-');
      line.Expect('=');
      if (line.Take('[')) {
        while (!line.Take(']')) {
          option.values.push_back(line.Value());
          if (!line.Take(',')) {
            line.Expect(']');
            break;
          }
        }
      } else {
        option.values.push_back(line.Value());
      }
      options.push_back(std::move(option));
    }
    line.ExpectEnd();
  }
  return options;
}

}  // namespace litecache::cli
