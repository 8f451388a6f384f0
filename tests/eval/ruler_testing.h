// Helpers shared by the tests of the generator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

// Replaces a tokenizer: counts a word with the space before it in pieces of five bytes, so that
// counts are not additive over cuts, like real ones.
inline int64_t CountPieces(std::string_view text) {
  int64_t tokens = 0;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    while (end < text.size() && text[end] != ' ' && text[end] != '\n') ++end;
    tokens += static_cast<int64_t>((end - i + 4) / 5);
    i = end;
  }
  return tokens;
}

inline int64_t CountOf(std::string_view text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

inline std::vector<std::string> SplitText(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

// The first needle of samples can be anywhere: from the first tenth to beyond `most` of the text.
template <typename Generator>
void ExpectAllDepths(const Generator& generator, double most) {
  double low = 1, high = 0, sum = 0;
  constexpr int kSamples = 200;
  for (int i = 0; i < kSamples; ++i) {
    const double depth = generator.Make(i).needles.at(0).depth;
    low = std::min(low, depth);
    high = std::max(high, depth);
    sum += depth;
  }
  EXPECT_LT(low, 0.1);
  EXPECT_GT(high, most);
  // A uniform depth has standard deviation 0.29, the mean of 200 has 0.02; the bound is six of
  // them.
  EXPECT_NEAR(sum / kSamples, 0.5, 0.13);
}

// The text of the InvalidArgument or FileError that `call` throws; fails the test otherwise.
template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace litecache::eval
