#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "test_seed.h"

namespace litecache::engine {
namespace {

// The first stop string to end in the text, found by testing every end in turn.
struct Expected {
  std::string text;
  bool stopped = false;
};
Expected Search(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// Feeds the text, cut at the bits of `cuts`; checks that no text is emitted too early.
void CheckSplit(const std::string& text, const std::vector<std::string>& stops, uint64_t cuts) {
  const Expected expected = Search(text, stops);
  StopMatcher matcher(stops);
  std::string out;
  bool stopped = false;
  size_t begin = 0;
  for (size_t i = 1; i <= text.size() && !stopped; ++i) {
    if (i < text.size() && (cuts >> (i - 1) & 1) == 0) continue;
    stopped = matcher.Add(std::string_view(text).substr(begin, i - begin), &out);
    begin = i;
    ASSERT_TRUE(expected.text.starts_with(out))
        << "let through '" << out << "' of '" << text << "'";
    if (stopped) break;
    // Only text that may still become a stop string is held back.
    const std::string held = text.substr(out.size(), i - out.size());
    if (!held.empty()) {
      ASSERT_TRUE(std::any_of(stops.begin(), stops.end(),
                              [&](const std::string& stop) {
                                return stop.size() > held.size() && stop.starts_with(held);
                              }))
          << "'" << held << "' is held back for nothing";
    }
  }
  matcher.Flush(&out);
  ASSERT_EQ(stopped, expected.stopped) << text << " cuts " << cuts;
  ASSERT_EQ(out, expected.text) << text << " cuts " << cuts;
}

TEST(StopMatcher, EverySplitOfATextGivesTheSame) {
  const struct {
    std::string text;
    std::vector<std::string> stops;
  } kCases[] = {
      {"hello\nUser: go", {"\nUser:"}},
      {"aaaaaabaaab", {"aaab"}},
      {"abababac", {"ababac", "bac"}},
      {"one two three", {"four", "three!", "e t"}},
      {"xx</s</s>yy", {"</s>"}},
      {"abcd", {"bc", "abc", "c"}},
      {"\xC3\xA9t\xC3\xA9 \xE2\x82\xAC", {"\xE2\x82\xAC"}},
      {"never", {"nevermore", "verb"}},
      {"same", {"same"}},
  };
  for (const auto& [text, stops] : kCases) {
    for (uint64_t cuts = 0; cuts < uint64_t{1} << (text.size() - 1); ++cuts) {
      CheckSplit(text, stops, cuts);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(StopMatcher, RandomTextsOverASmallAlphabet) {
  auto random = testing::TestRandom();
  for (int i = 0; i < 20000; ++i) {
    const auto word = [&](size_t longest) {
      std::string text(1 + random() % longest, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(6);
    CheckSplit(word(24), stops, random());
    if (HasFatalFailure()) return;
  }
}

TEST(StopMatcher, NothingFollowsAStop) {
  StopMatcher matcher({"END"});
  std::string out;
  EXPECT_FALSE(matcher.Add("a E", &out));
  EXPECT_EQ(out, "a ");
  EXPECT_TRUE(matcher.Add("ND b", &out));
  EXPECT_TRUE(matcher.Add("c", &out));
  matcher.Flush(&out);
  EXPECT_EQ(out, "a ");
}

}  // namespace
}  // namespace litecache::engine
