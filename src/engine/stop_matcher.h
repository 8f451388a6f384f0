// Finds stop strings in text that arrives in parts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::engine {

// Passes text through up to the first stop string, however the text is divided into parts: the
// first stop string to end in the text wins, and the longest of those that end at the same place.
// Text that may begin a stop string is held back until that is decided.
class StopMatcher {
 public:
  // Stop strings must be valid UTF-8 and not empty. include: the one that ends the text is let
  // through.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  // Appends the text that is final to *out. Returns true when a stop string is complete: nothing
  // after it is passed through, nor is it itself unless included.
  bool Add(std::string_view text, std::string* out);
  // Index of the stop string that is complete; -1: none.
  int matched() const { return matched_; }
  // The text has ended: passes through what was held back.
  void Flush(std::string* out);

 private:
  // Bytes at the end of held_ that may begin a stop string.
  size_t Undecided() const;

  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace litecache::engine
