// Regular expressions with the semantics of the `tokenizers` package's engine (Oniguruma), run by
// PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

// Translates an Oniguruma pattern to PCRE2's syntax: common syntax is kept, differing syntax (`\w`,
// `\h`, `{1,3}+`, `\p{Han}`, `(?m)`) is rewritten. For the rest (back references, class
// intersections and nested classes, conditionals) throws an Unsupported that names the construct
// and `where`.
std::string TranslatePattern(std::string_view pattern, std::string_view where);

// A pattern that matches only `text`.
std::string EscapePattern(std::string_view text);

// Compiled once, used by any number of threads.
class Regex {
 public:
  // `pattern` in Oniguruma syntax; `where` is its position in the file, for messages. Throws
  // Unsupported for unsupported constructs, FileError for malformed patterns.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Iterates over the matches of one text after another. Not thread-safe: use one per thread.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // Starts on `text`, valid UTF-8, which must outlive the iteration.
    void Start(std::string_view text);
    // The next match [*begin, *end). Empty matches directly after the last match are skipped.
    // Throws InvalidArgument if matching exceeds its work limit.
    bool Next(size_t* begin, size_t* end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace litecache::tokenizer
