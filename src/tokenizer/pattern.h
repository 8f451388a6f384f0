// The patterns of Split and Replace: a plain string or a regular expression.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"

namespace litecache::tokenizer {

// A part of a text, and whether a pattern matched it.
struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

class Pattern {
 public:
  static Pattern FromString(std::string text);
  static Pattern FromRegex(Regex regex);

  // The plain string, if it is one.
  const std::optional<std::string>& literal() const { return literal_; }

  // Splits a text into matches and the parts between them, covering all of it; reuse one object for
  // many texts. Not thread-safe.
  class Splitter {
   public:
    explicit Splitter(const Pattern& pattern);
    // The result is valid until the next call. A pattern that can match nothing produces empty
    // matches.
    const std::vector<Span>& Split(std::string_view text);

   private:
    const Pattern& pattern_;
    std::optional<Regex::Matcher> matcher_;
    std::vector<Span> spans_;
  };

  // `text` with every match replaced by `content`.
  std::string ReplaceAll(std::string_view text, std::string_view content) const;

 private:
  std::optional<std::string> literal_;
  std::optional<Regex> regex_;
};

// Reads the field `pattern` of `json`: {"String": "..."} or {"Regex": "..."}.
Pattern LoadPattern(const nlohmann::json& json, std::string_view where);

}  // namespace litecache::tokenizer
