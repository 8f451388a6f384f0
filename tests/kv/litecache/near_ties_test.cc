// The intervals of selections that rounding permits: they contain the retriever's own selection,
// and reject one with a single wrong row.
#include "kv/litecache/near_ties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "device/cpu/cpu_device.h"
#include "kv/retrieve/retriever.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::kv {
namespace {

constexpr int64_t kTokens = 300;

struct Selected {
  std::vector<int32_t> positions;
  std::vector<Interval> intervals;
};

Selected SelectRandomly(std::mt19937_64& random, const Layout& layout, const KvOptions& options,
                        int64_t k) {
  std::normal_distribution<float> normal;
  const auto d = static_cast<size_t>(layout.head_dim);
  std::vector<std::vector<float>> keys(kTokens, std::vector<float>(d));
  std::vector<float> flat;
  for (auto& key : keys) {
    for (float& x : key) flat.push_back(x = normal(random));
  }
  std::vector<float> q(static_cast<size_t>(layout.q_heads) * d);
  for (float& x : q) x = 2 * normal(random);
  const uint64_t page_bytes = PageLayout(layout).page_bytes;
  const auto retriever = CreateRetriever(layout, options, nullptr, page_bytes);
  std::vector<std::vector<std::byte>> pages(
      static_cast<size_t>(kTokens / retriever->metadata_tokens() + 1),
      std::vector<std::byte>(page_bytes));
  std::vector<std::byte*> metadata;
  for (auto& page : pages) metadata.push_back(page.data());
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  const EncodeWork encode{.keys = flat.data(),
                          .key_stride = layout.head_dim,
                          .count = kTokens,
                          .metadata = metadata.data()};
  retriever->Encode(*stream, {&encode, 1});
  Selected result{.positions = std::vector<int32_t>(static_cast<size_t>(k)), .intervals = {}};
  SelectWork work{.q = q.data(),
                  .scale = 0.125f,
                  .end = kTokens,
                  .k = k,
                  .metadata = metadata.data(),
                  .rows = {},
                  .positions = result.positions.data()};
  retriever->Select(*stream, {&work, 1});
  const std::vector<double> exact(q.begin(), q.end());
  result.intervals = ScoreIntervals(layout, options, retriever->Weights(0), keys, 0, exact, 0.125);
  return result;
}

TEST(NearTies, HoldTheChoiceAndNoOther) {
  std::mt19937_64 random = testing::TestRandom();
  int64_t swaps = 0, refused = 0, only = 0;
  for (int round = 0; round < testing::Rounds(40); ++round) {
    const Layout layout{.layers = 1,
                        .q_heads = 1 + static_cast<int64_t>(random() % 4),
                        .kv_heads = 1,
                        .head_dim = round % 2 == 0 ? 64 : 80,
                        .dtype = DType::kF32,
                        .score_cap = round % 4 < 2 ? 0.0f : 4.0f};
    KvOptions options;
    const char* retrievers[] = {"hata", "hata", "hata", "loki", "keys", "keys2"};
    options.retriever = retrievers[round % 6];
    options.hata_bits = 128;
    options.hata_norms = round % 3 > 0;
    options.hata_group = options.hata_norms && round % 2 == 0 ? "softmax" : "sum";
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << options.retriever);
    const int64_t k = 1 + static_cast<int64_t>(random() % 100);
    const Selected got = SelectRandomly(random, layout, options, k);
    ASSERT_EQ(got.intervals.size(), static_cast<size_t>(kTokens));
    EXPECT_TRUE(CanBeBest(got.intervals, 0, k, got.positions));
    EXPECT_FALSE(CanBeBest(got.intervals, 0, k + 1, got.positions));
    // Replaces the worst selected row by each other one in turn.
    const auto middle = [&](int32_t t) {
      const Interval& x = got.intervals[static_cast<size_t>(t)];
      return (x.low + x.high) / 2;
    };
    const int32_t worst =
        *std::min_element(got.positions.begin(), got.positions.end(),
                          [&](int32_t a, int32_t b) { return middle(a) < middle(b); });
    const bool is_only = IsOnlyBest(got.intervals, 0, got.positions);
    only += is_only;
    for (int32_t t = 0; t < kTokens; ++t) {
      if (std::binary_search(got.positions.begin(), got.positions.end(), t)) continue;
      std::vector<int32_t> other = got.positions;
      std::replace(other.begin(), other.end(), worst, t);
      std::sort(other.begin(), other.end());
      ++swaps;
      const bool is_refused = !CanBeBest(got.intervals, 0, k, other);
      refused += is_refused;
      // Of rows with equal scores the first ones are selected.
      const Interval &a = got.intervals[static_cast<size_t>(t)],
                     &b = got.intervals[static_cast<size_t>(worst)];
      if (is_only && (a.low != b.low || a.high != b.high)) {
        EXPECT_TRUE(is_refused);
      }
    }
  }
  // Without norms many rows have equal scores, and each of those is equally good.
  EXPECT_GT(refused, swaps * 95 / 100) << "of " << swaps;
  if (testing::Rounds(40) >= 40) {
    EXPECT_GT(only, 20);
  }
}

TEST(NearTies, AChoiceThatRoundingDecidesIsNotTheOnlyOne) {
  const Interval high{3, 3}, low{1, 1}, equal{2, 2}, wide{1.9, 2.1}, near{2 + 1e-5, 2 + 1e-5};
  const std::vector<int32_t> two = {10, 11};
  const auto is_only = [&](const std::vector<Interval>& x) { return IsOnlyBest(x, 10, two); };
  EXPECT_TRUE(is_only({high, equal, low}));
  EXPECT_TRUE(is_only({high, equal, equal, low}));  // the first of the equal ones
  EXPECT_FALSE(is_only({high, wide, equal}));
  EXPECT_FALSE(is_only({high, equal, wide}));
  EXPECT_FALSE(is_only({high, near, equal}));
  EXPECT_FALSE(is_only({high, low, equal}));  // not the best at all

  const std::vector<Interval> scores = {high, wide, low};
  EXPECT_TRUE(IsOnlyNeeded(scores, 2.5, 0, 3));
  EXPECT_FALSE(IsOnlyNeeded(scores, 2, 0, 3));
  EXPECT_TRUE(IsOnlyNeeded(scores, 2, 2, 3));
  EXPECT_TRUE(IsOnlyNeeded(scores, 2, 0, 1));
}

TEST(NearTies, AreWideOnlyWhereRoundingDecides) {
  const Layout layout{
      .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 2, .dtype = DType::kF32};
  KvOptions options;
  options.retriever = "hata";
  options.hata_bits = 1;
  options.hata_norms = false;
  options.hata_group = "sum";
  const std::vector<float> weights = {1, 1};
  const std::vector<double> q = {1, 0};
  const std::vector<std::vector<float>> keys = {{1, 1}, {1, -1}, {-1, 0.5f}};
  const auto intervals = ScoreIntervals(layout, options, weights, keys, 0, q, 1);
  ASSERT_EQ(intervals.size(), 3u);
  EXPECT_EQ(intervals[0].low, 1);
  EXPECT_EQ(intervals[0].high, 1);
  EXPECT_EQ(intervals[1].low, -1);  // its projection is zero: the bit may have either value
  EXPECT_EQ(intervals[1].high, 1);
  EXPECT_EQ(intervals[2].low, -1);
  EXPECT_EQ(intervals[2].high, -1);
}

}  // namespace
}  // namespace litecache::kv
