// Caches that drop what a sequence no longer needs: how many of its tokens they can still take
// back.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "kv/cache.h"

namespace litecache::kv {

// A cache whose Truncate() throws InvalidArgument, with the cache unchanged, for fewer tokens than
// ShortestLength(). All other caches take back any number.
class LimitedTruncation {
 public:
  virtual ~LimitedTruncation() = default;
  // The fewest tokens to which Truncate() can bring a sequence now.
  virtual int64_t ShortestLength(SequenceId id) const = 0;
};

// The check of Truncate(id, tokens) for a sequence of `length` tokens.
inline void CheckTruncation(SequenceId id, int64_t length, int64_t tokens, int64_t shortest) {
  LC_CHECK(tokens <= length, "{} of {} tokens", tokens, length);
  if (tokens >= shortest) return;
  throw InvalidArgument(
      "KV cache: sequence {} of {} tokens cannot go back to {}: what it would need there is gone; "
      "take back at most {} tokens",
      id, length, tokens, length - shortest);
}

}  // namespace litecache::kv
