// Answers arrive in pieces, which may end anywhere.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace litecache::testing {

using Pieces = std::vector<std::string_view>;

// Pieces of `size` bytes.
inline Pieces PiecesOf(std::string_view answer, size_t size) {
  Pieces pieces;
  for (size_t at = 0; at < answer.size(); at += size) pieces.push_back(answer.substr(at, size));
  return pieces;
}

// Expects of parse(pieces) the same for an answer in one piece, in every pair and byte by byte.
template <typename Parse, typename Result>
void ExpectForEveryCut(const std::string& answer, const Parse& parse, const Result& expected) {
  SCOPED_TRACE(answer);
  const std::string_view all = answer;
  EXPECT_EQ(parse(Pieces{all}), expected);
  for (size_t at = 0; at < all.size(); ++at) {
    EXPECT_EQ(parse(Pieces{all.substr(0, at), all.substr(at)}), expected) << "cut at " << at;
  }
  EXPECT_EQ(parse(PiecesOf(all, 1)), expected);
}

// Expects of parse(pieces) the same for an answer in one piece and cut at random.
template <typename Random, typename Parse>
void ExpectForRandomCuts(const std::string& answer, Random& random, const Parse& parse) {
  const auto whole = parse(Pieces{answer});
  for (const size_t longest : {1u, 4u, 20u}) {
    Pieces pieces;
    for (size_t at = 0; at < answer.size(); at += pieces.back().size()) {
      pieces.push_back(std::string_view(answer).substr(at, 1 + random() % longest));
    }
    ASSERT_EQ(parse(pieces), whole) << answer;
  }
}

}  // namespace litecache::testing
