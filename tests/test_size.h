// Reduces a random test under tools that make each of its steps hundreds of times slower: racecheck
// in scripts/gpu-check. Tests that are meaningless below their full size do not use this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace litecache::testing {

// The limit in an environment variable, at most `all`.
inline int32_t AtMost(const char* variable, int32_t all) {
  const char* limit = std::getenv(variable);
  return limit == nullptr ? all : std::clamp(std::atoi(limit), 1, all);
}

// Number of rounds in a test: LC_TEST_ROUNDS.
inline int32_t Rounds(int32_t all) { return AtMost("LC_TEST_ROUNDS", all); }
// Number of tokens in a sequence or a vocabulary: LC_TEST_TOKENS, 100 or more.
inline int32_t Tokens(int32_t all) { return AtMost("LC_TEST_TOKENS", all); }
// Number of sequences in a step: LC_TEST_SEQUENCES.
inline int32_t Sequences(int32_t all) { return AtMost("LC_TEST_SEQUENCES", all); }

}  // namespace litecache::testing
