// The kept token sequences: the longest common prefix of a prompt with any of them, and the order
// of their last use. Independent of the cache.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kv/cache.h"

namespace litecache::engine {

// An ordered set of token sequences, none a prefix of another. In lexicographic order the sequence
// that shares most with a prompt is adjacent to the prompt's place, on one side or the other: two
// comparisons of tokens find it, exactly, without hashes.
class PrefixIndex {
 public:
  struct Match {
    kv::SequenceId sequence = 0;
    int64_t tokens = 0;  // length of the longest common prefix
  };
  // nullopt: no sequence begins with the prompt's first token. Counts as a use.
  std::optional<Match> Find(std::span<const int32_t> prompt);
  // Whether a kept sequence begins with all of `tokens`. Counts as a use.
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

  Entries entries_;
  std::map<uint64_t, Entries::iterator> by_use_;
  uint64_t uses_ = 0;
};

// The number of leading tokens that a and b share.
int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace litecache::engine
