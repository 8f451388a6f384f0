// Regular expressions with the semantics of the `tokenizers` package's engine (Oniguruma), run by
// PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace litecache::tokenizer {

// An Oniguruma pattern in PCRE2's syntax: what both understand alike stays, what differs (`\w`,
// `\h`, `{1,3}+`, `\p{Han}`, `(?m)`) is rewritten. Throws Unsupported naming the construct and
// `where` for the rest (back references, class intersections and nested classes, conditionals).
std::string TranslatePattern(std::string_view pattern, std::string_view where);

// `text` as a pattern that matches only itself.
std::string EscapePattern(std::string_view text);

// Compiled once, used by any number of threads.
class Regex {
 public:
  // `pattern` in Oniguruma syntax; `where` is its place in the file, for messages. Throws
  // Unsupported for a construct that is not supported, FileError for a pattern that is malformed.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Iterates over the matches in one text after the other. Not thread-safe: one a thread.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // Begins with `text`, valid UTF-8, which must outlive the iteration.
    void Start(std::string_view text);
    // The next match [*begin, *end). Empty matches right behind the last match are passed over.
    // Throws InvalidArgument where matching passes its work limit.
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
