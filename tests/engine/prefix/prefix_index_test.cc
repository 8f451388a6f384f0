// Compares the index of kept sequences with a list that is searched linearly.
#include "engine/prefix/prefix_index.h"

#include <gtest/gtest.h>

#include <list>
#include <random>

#include "test_seed.h"

namespace litecache::engine {
namespace {

// Few distinct tokens and short sequences, so that prefixes and equal sequences are common.
std::vector<int32_t> RandomTokens(std::mt19937_64& random) {
  std::vector<int32_t> tokens(1 + random() % 8);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3);
  return tokens;
}

TEST(PrefixIndex, FindsWhatASearchFinds) {
  auto random = testing::TestRandom(81);
  struct Kept {
    std::vector<int32_t> tokens;
    kv::SequenceId sequence;
  };
  PrefixIndex index;
  std::list<Kept> kept;  // the most recently used one last
  kv::SequenceId next = 1;
  const auto use = [&](std::list<Kept>::iterator item) { kept.splice(kept.end(), kept, item); };
  const auto find = [&](kv::SequenceId sequence) {
    return std::find_if(kept.begin(), kept.end(),
                        [&](const Kept& item) { return item.sequence == sequence; });
  };
  for (int i = 0; i < 20000; ++i) {
    const auto tokens = RandomTokens(random);
    int64_t longest = 0;
    bool covered = false;
    for (const Kept& item : kept) {
      const int64_t common = CommonPrefix(item.tokens, tokens);
      longest = std::max(longest, common);
      covered = covered || common == static_cast<int64_t>(tokens.size());
    }
    if (random() % 2 == 0) {
      const auto match = index.Find(tokens);
      ASSERT_EQ(match.has_value(), longest > 0);
      if (!match) continue;
      EXPECT_EQ(match->tokens, longest);
      const auto item = find(match->sequence);
      ASSERT_NE(item, kept.end());
      EXPECT_EQ(CommonPrefix(item->tokens, tokens), longest);
      use(item);
      continue;
    }
    if (random() % 3 == 0) {
      const auto oldest = index.PopOldest();
      ASSERT_EQ(oldest.has_value(), !kept.empty());
      if (!oldest) continue;
      EXPECT_EQ(*oldest, kept.front().sequence);
      kept.pop_front();
      continue;
    }
    const bool covers = index.Covers(tokens);
    ASSERT_EQ(covers, covered);
    if (covers) {
      // The index chooses which of the covering sequences it marks as used; the list follows it.
      for (auto& item : kept) {
        if (CommonPrefix(item.tokens, tokens) == static_cast<int64_t>(tokens.size())) {
          const auto match = index.Find(item.tokens);
          ASSERT_EQ(match->sequence, item.sequence);
        }
      }
      std::list<Kept> used;
      for (auto item = kept.begin(); item != kept.end();) {
        const auto here = item++;
        if (CommonPrefix(here->tokens, tokens) == static_cast<int64_t>(tokens.size())) {
          used.splice(used.end(), kept, here);
        }
      }
      kept.splice(kept.end(), used);
      continue;
    }
    const auto gone = index.Add(tokens, next);
    const auto prefix = std::find_if(kept.begin(), kept.end(), [&](const Kept& item) {
      return CommonPrefix(item.tokens, tokens) == static_cast<int64_t>(item.tokens.size());
    });
    ASSERT_EQ(gone.has_value(), prefix != kept.end());
    if (gone) {
      EXPECT_EQ(*gone, prefix->sequence);
      kept.erase(prefix);
    }
    kept.push_back({tokens, next++});
    ASSERT_EQ(index.size(), kept.size());
  }
}

// Sequences that are used as a whole may be prefixes of each other.
TEST(PrefixIndex, FindsTheLongestWholeSequence) {
  auto random = testing::TestRandom(82);
  PrefixIndex index(/*cuts=*/false);
  std::list<std::pair<std::vector<int32_t>, kv::SequenceId>> kept;  // the last used one last
  kv::SequenceId next = 1;
  for (int i = 0; i < 20000; ++i) {
    const auto tokens = RandomTokens(random);
    auto longest = kept.end();
    int64_t common = 0;
    for (auto item = kept.begin(); item != kept.end(); ++item) {
      const int64_t shared = CommonPrefix(item->first, tokens);
      common = std::max(common, shared);
      if (shared < static_cast<int64_t>(item->first.size())) continue;
      if (longest == kept.end() || item->first.size() > longest->first.size()) longest = item;
    }
    ASSERT_EQ(index.LongestCommon(tokens), common);
    const bool equal = longest != kept.end() && longest->first == tokens;
    if (random() % 2 == 0) {
      const auto match = index.Find(tokens);
      ASSERT_EQ(match.has_value(), longest != kept.end());
      if (!match) continue;
      EXPECT_EQ(match->sequence, longest->second);
      EXPECT_EQ(match->tokens, static_cast<int64_t>(longest->first.size()));
      kept.splice(kept.end(), kept, longest);
    } else if (random() % 3 == 0) {
      const auto oldest = index.PopOldest();
      ASSERT_EQ(oldest.has_value(), !kept.empty());
      if (!oldest) continue;
      EXPECT_EQ(*oldest, kept.front().second);
      kept.pop_front();
    } else {
      ASSERT_EQ(index.Covers(tokens), equal);
      if (equal) {
        kept.splice(kept.end(), kept, longest);
        continue;
      }
      EXPECT_EQ(index.Add(tokens, next), std::nullopt);
      kept.emplace_back(tokens, next++);
      ASSERT_EQ(index.size(), kept.size());
    }
  }
}

}  // namespace
}  // namespace litecache::engine
