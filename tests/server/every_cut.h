// Answers arrive in pieces, which may end anywhere.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace litecache::testing {

// Expects of parse(pieces) the same for an answer in one piece, in every pair and byte by byte.
template <typename Parse, typename Result>
void ExpectForEveryCut(const std::string& answer, const Parse& parse, const Result& expected) {
  SCOPED_TRACE(answer);
  using Pieces = std::vector<std::string_view>;
  const std::string_view all = answer;
  EXPECT_EQ(parse(Pieces{all}), expected);
  Pieces bytes;
  for (size_t at = 0; at < all.size(); ++at) {
    EXPECT_EQ(parse(Pieces{all.substr(0, at), all.substr(at)}), expected) << "cut at " << at;
    bytes.push_back(all.substr(at, 1));
  }
  EXPECT_EQ(parse(bytes), expected);
}

}  // namespace litecache::testing
