// The kept token sequences: which of them a prompt can begin with, and the order of their last use.
// Independent of the cache.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/cache.h"

namespace litecache::engine {

// An ordered set of token sequences. In lexicographic order the sequence that shares most with a
// prompt is adjacent to the prompt's place, on one side or the other: two comparisons of tokens
// find it, exactly, without hashes.
class PrefixIndex {
 public:
  // cuts: any prefix of a kept sequence can be used (kv::Cache::CutsPrefixes), and none is a prefix
  // of another; otherwise sequences are used as a whole.
  explicit PrefixIndex(bool cuts = true) : cuts_(cuts) {}

  struct Match {
    kv::SequenceId sequence = 0;
    int64_t tokens = 0;  // how many leading tokens of both the prompt can use
  };
  // The sequence with the most tokens that the prompt can use; nullopt: none. Counts as a use.
  std::optional<Match> Find(std::span<const int32_t> prompt);
  // Length of the longest common prefix of the prompt and any sequence.
  int64_t LongestCommon(std::span<const int32_t> prompt) { return Closest(prompt).second; }
  // Whether a kept sequence can be used for all of `tokens`. Counts as a use.
  bool Covers(std::span<const int32_t> tokens);
  // Adds a sequence that is not covered. If it covers a kept one, removes and returns that.
  std::optional<kv::SequenceId> Add(std::vector<int32_t> tokens, kv::SequenceId sequence);
  // Removes and returns the least recently used sequence.
  std::optional<kv::SequenceId> PopOldest();

  size_t size() const { return entries_.size(); }
  std::vector<kv::SequenceId> Sequences() const;

 private:
  struct Entry {
    kv::SequenceId sequence = 0;
    uint64_t used = 0;
  };
  struct Less {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
      return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end()) < 0;
    }
  };
  using Entries = std::map<std::vector<int32_t>, Entry, Less>;

  void Touch(Entries::iterator entry);
  // The sequence with the longest common prefix, and its length; end() and 0: none.
  std::pair<Entries::iterator, int64_t> Closest(std::span<const int32_t> prompt);
  // The longest sequence that the prompt begins with; end(): none.
  Entries::iterator LongestWhole(std::span<const int32_t> prompt);

  const bool cuts_;
  Entries entries_;
  std::map<uint64_t, Entries::iterator> by_use_;
  uint64_t uses_ = 0;
};

// The number of leading tokens that a and b share.
int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace litecache::engine
