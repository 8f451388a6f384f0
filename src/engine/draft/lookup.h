// Drafts from the text itself: what followed the longest earlier occurrence of the last tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace litecache::engine {

// An index of one sample's prompt and answer, updated token by token. Positions that follow the
// same two tokens form a chain, the latest first; a proposal compares a limited number of them, so
// its time does not grow with the text.
class LookupDrafter {
 public:
  explicit LookupDrafter(std::span<const int32_t> prompt);
  void Add(int32_t token);
  // Finds the longest match of the last tokens with earlier ones, at least kShortest tokens, the
  // latest among equals, and writes the `most` tokens that followed it to *draft. If the match
  // reaches the end of the text, the draft repeats it. Returns the length of the match, at most
  // kLongest; 0, with an empty draft: nothing matches.
  int64_t Propose(int64_t most, std::vector<int32_t>* draft) const;

  static constexpr int64_t kShortest = 2;
  static constexpr int64_t kLongest = 32;

 private:
  static constexpr int kCandidates = 64;

  std::vector<int32_t> tokens_;
  // Two adjacent tokens -> the position after their latest occurrence.
  std::unordered_map<uint64_t, int64_t> latest_;
  // [position]: the position before it in its chain; 0: none.
  std::vector<int64_t> earlier_;
};

}  // namespace litecache::engine
