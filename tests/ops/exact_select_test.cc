// Selection by the rows' attention.
#include "ops/select/exact_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "select_testing.h"

namespace litecache::ops {
namespace {

TEST(ExactSelect, EqualsASoftmaxOfDotProducts) {
  Random random(85);
  ForEachShape([&](Stream& stream, const Shape& s) {
    for (RowEncoding encoding : {RowEncoding::kBF16, RowEncoding::kF32, RowEncoding::kFp8,
                                 RowEncoding::kInt8, RowEncoding::kInt4}) {
      SCOPED_TRACE(std::string(Name(encoding)));
      const RowFormat format{encoding, s.head_dim};
      const RowFormat plain{RowEncoding::kF32, s.head_dim};
      const int64_t page_tokens = 16 * s.page_blocks;
      const Pages pages(random, s.tokens, page_tokens,
                        page_tokens * static_cast<int64_t>(format.row_bytes()));
      const PagedRows rows{pages.pages(), page_tokens, format};
      const Rows queries = RandomRows(random, s.group, s.head_dim, false, 2);
      Rows keys;
      for (int64_t t = 0; t < s.tokens; ++t) {
        std::vector<float> row(static_cast<size_t>(2 * s.head_dim));
        for (float& x : row) x = random.Normal();
        ConvertRow(plain, reinterpret_cast<const std::byte*>(row.data()), format, rows.Row(t));
        // The value stored in the row.
        ConvertRow(format, rows.Row(t), plain, reinterpret_cast<std::byte*>(row.data()));
        row.resize(static_cast<size_t>(s.head_dim));
        keys.push_back(row);
      }
      const std::vector<float> q = Flat(queries);
      const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
      std::vector<std::vector<double>> dots(static_cast<size_t>(s.group));
      double error = 0;
      for (size_t j = 0; j < dots.size(); ++j) {
        for (const auto& key : keys) {
          dots[j].push_back(Dot(queries[j], key));
          const double size = std::sqrt(Dot(queries[j], queries[j]) * Dot(key, key));
          error = std::max(error, scale * size * static_cast<double>(s.head_dim) * 0x1p-24);
        }
      }
      for (const float cap : {0.0f, 1.5f}) {
        std::vector<std::vector<double>> scores = dots;
        for (auto& of_head : scores) {
          const double limit = cap / scale;
          for (double& x : of_head) x = cap == 0 ? x : limit * std::tanh(x / limit);
        }
        std::vector<ExactSelectWork> work;
        std::vector<Result> results;
        const std::vector<Range> ranges = Ranges(random, s.tokens);
        for (const Range& r : ranges) results.emplace_back(r, r.end - r.begin);
        for (Result& r : results) {
          work.push_back(
              {.q = q.data(), .scale = scale, .cap = cap, .rows = rows, .selection = r.selection});
        }
        RunAll(work, results, [&](auto items) { ExactSelect(stream, s.group, items); });
        for (size_t i = 0; i < ranges.size(); ++i) {
          ExpectSoftmaxSelection(results[i], scores, scale, ranges[i], 2 * error + 1e-5);
        }
      }
    }
  });
}

// One row holds nearly all of the attention: by need only it is worth taking, beside the fewest.
TEST(ExactSelect, TakesWhatIsNeeded) {
  ForEachIsa(2, [&](Stream& stream) {
    constexpr int64_t kTokens = 1000, kDim = 16;
    std::vector<float> memory(static_cast<size_t>(kTokens * 2 * kDim));
    const auto key = [&](int64_t t) { return memory.data() + t * 2 * kDim; };
    std::byte* page = reinterpret_cast<std::byte*>(memory.data());
    const std::vector<float> q(2 * kDim, 1);
    std::vector<int32_t> positions(300);
    const auto count = [&](int64_t k, int64_t fewest) {
      ExactSelectWork work{
          .q = q.data(),
          .scale = 1,
          .rows = {&page, kTokens, {RowEncoding::kF32, kDim}},
          .selection = {
              .begin = 0, .end = kTokens, .k = k, .fewest = fewest, .positions = positions.data()}};
      ExactSelect(stream, 2, {&work, 1});
      EXPECT_EQ(work.selection.k, k);
      return work.selection.count;
    };
    EXPECT_EQ(count(300, 30), 300);  // all alike: every row holds the average
    *key(700) = 20;
    EXPECT_EQ(count(300, 0), 300);
    EXPECT_EQ(count(300, 1), 1);
    EXPECT_EQ(positions[0], 700);
    EXPECT_EQ(count(300, 30), 30);
    for (int64_t t = 100; t < 150; ++t) *key(t) = 18;
    EXPECT_EQ(count(300, 30), 51);
    EXPECT_EQ(positions[0], 100);
    EXPECT_EQ(positions[50], 700);
    EXPECT_EQ(count(40, 4), 40);  // the most
  });
}

TEST(ExactSelect, TakesScoresOfAnySize) {
  Random random(86);
  ForEachIsa(2, [&](Stream& stream) {
    constexpr int64_t kTokens = 3000, kDim = 16;
    std::vector<float> memory(static_cast<size_t>(kTokens * 2 * kDim));
    for (float& x : memory) x = random.Normal();
    for (int64_t t = 0; t < 40; ++t) memory[static_cast<size_t>(t * 70 * 2 * kDim)] = 3e38f;
    std::byte* page = reinterpret_cast<std::byte*>(memory.data());
    std::vector<float> q(2 * kDim, 1e6f);
    std::vector<int32_t> positions(100);
    ExactSelectWork work{
        .q = q.data(),
        .scale = 1,
        .rows = {&page, kTokens, {RowEncoding::kF32, kDim}},
        .selection = {.begin = 1, .end = 2998, .k = 100, .positions = positions.data()}};
    ExactSelect(stream, 2, {&work, 1});
    ASSERT_EQ(work.selection.count, 100);
    EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
    for (int64_t t = 1; t < 40; ++t) {
      EXPECT_TRUE(std::binary_search(positions.begin(), positions.end(), t * 70)) << t;
    }
  });
}

}  // namespace
}  // namespace litecache::ops
