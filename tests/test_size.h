// Less of a random test where a tool makes every step of it hundreds of times slower: racecheck in
// scripts/gpu-check. A test that needs its size to mean anything does not ask.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace litecache::testing {

// What the environment's variable allows, at most `all`.
inline int32_t AtMost(const char* variable, int32_t all) {
  const char* limit = std::getenv(variable);
  return limit == nullptr ? all : std::clamp(std::atoi(limit), 1, all);
}

// Of a test's rounds: LC_TEST_ROUNDS.
inline int32_t Rounds(int32_t all) { return AtMost("LC_TEST_ROUNDS", all); }
// Of a sequence's tokens, or a vocabulary's: LC_TEST_TOKENS, 100 or more.
inline int32_t Tokens(int32_t all) { return AtMost("LC_TEST_TOKENS", all); }
// Of a step's sequences: LC_TEST_SEQUENCES.
inline int32_t Sequences(int32_t all) { return AtMost("LC_TEST_SEQUENCES", all); }

}  // namespace litecache::testing
