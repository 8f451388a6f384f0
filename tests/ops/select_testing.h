// Shared by the tests of selections: inputs, pages, and the best positions by scores of plain
// double-precision code. Most inputs are small integers, so that every score is exact and the
// selected sets must be equal, including ties.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "ops/select/selection.h"
#include "ops_testing.h"

namespace litecache::ops {

using Rows = std::vector<std::vector<float>>;

inline Rows RandomRows(Random& random, int64_t count, int64_t n, bool integers, float scale = 1) {
  Rows rows(static_cast<size_t>(count), std::vector<float>(static_cast<size_t>(n)));
  for (auto& row : rows) {
    for (float& x : row) {
      x = integers ? static_cast<float>(random.Integer(-4, 4)) : random.Normal(scale);
    }
  }
  return rows;
}

inline std::vector<float> Flat(const Rows& rows) {
  std::vector<float> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

inline double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Pages of noise, so that reading anything before it was written would show.
class Pages {
 public:
  Pages(Random& random, int64_t tokens, int64_t page_tokens, int64_t page_bytes)
      : page_tokens_(page_tokens) {
    for (int64_t t = 0; t < tokens; t += page_tokens) {
      auto& page = memory_.emplace_back(static_cast<size_t>(page_bytes));
      for (std::byte& b : page) b = static_cast<std::byte>(random.Integer(0, 255));
    }
    for (auto& page : memory_) pages_.push_back(page.data());
  }
  PagedMetadata metadata() const { return {pages_.data(), page_tokens_}; }
  std::byte* const* pages() const { return pages_.data(); }
  const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

 private:
  int64_t page_tokens_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> pages_;
};

// Cuts [0, tokens) at random positions and encodes the parts in order, some of them twice.
inline void EncodeInParts(Random& random, int64_t tokens,
                          const std::function<void(int64_t begin, int64_t count)>& encode) {
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t most = random.Integer(0, 3) == 0 ? 300 : 20;
    const int64_t count = std::min(random.Integer(1, most), tokens - begin);
    encode(begin, count);
    if (random.Integer(0, 2) == 0) encode(begin, count);
    begin += count;
  }
}

struct Range {
  int64_t begin, end, k;
};
// Odd ranges with small, large and full k.
inline std::vector<Range> Ranges(Random& random, int64_t tokens) {
  std::vector<Range> ranges = {
      {0, tokens, tokens / 10}, {0, tokens, 1}, {4, tokens - 3, tokens - 8}};
  for (int i = 0; i < 8; ++i) {
    const int64_t begin = random.Integer(0, tokens - 2);
    const int64_t end = random.Integer(begin + 2, tokens);
    ranges.push_back({begin, end, random.Integer(1, end - begin - 1)});
  }
  return ranges;
}

// The positions of the k best of scores[t - begin], by a stable sort.
inline std::vector<int32_t> Best(const std::vector<double>& scores, int64_t begin, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  for (int32_t& t : order) t += static_cast<int32_t>(begin);
  return order;
}

// Checks that the positions are ascending, k of [begin, end), and that none scores less than an
// unselected one by more than `tolerance`.
inline void ExpectBestWithin(const std::vector<int32_t>& positions,
                             const std::vector<double>& scores, int64_t begin, int64_t k,
                             double tolerance) {
  ASSERT_EQ(static_cast<int64_t>(positions.size()), k);
  std::vector<bool> taken(scores.size());
  double least = INFINITY, left = -INFINITY;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0) {
      ASSERT_LT(positions[i - 1], positions[i]);
    }
    const int64_t index = positions[i] - begin;
    ASSERT_TRUE(index >= 0 && index < static_cast<int64_t>(scores.size())) << positions[i];
    taken[static_cast<size_t>(index)] = true;
    least = std::min(least, scores[static_cast<size_t>(index)]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!taken[i]) left = std::max(left, scores[i]);
  }
  EXPECT_GE(least, left - tolerance);
}

struct Result {
  std::vector<int32_t> positions;
  std::vector<float> scores;
  Selection selection;
  Result(const Range& r, int64_t score_count)
      : positions(static_cast<size_t>(r.k)), scores(static_cast<size_t>(score_count)) {
    selection = {.begin = r.begin,
                 .end = r.end,
                 .k = r.k,
                 .positions = positions.data(),
                 .scores = scores.data()};
  }
  // Call after `w` ran.
  void Take(const Selection& s) { positions.resize(static_cast<size_t>(s.count)); }
};

// Runs `work` in one call and takes its results.
template <class Work, class Select>
void RunAll(std::vector<Work>& work, std::vector<Result>& results, const Select& select) {
  select(std::span<Work>(work));
  for (size_t i = 0; i < work.size(); ++i) results[i].Take(work[i].selection);
}

struct Shape {
  int64_t head_dim, group, tokens, page_blocks;
};
const Shape kShapes[] = {{64, 4, 1500, 3}, {80, 1, 700, 1}, {128, 8, 900, 2},
                         {64, 2, 61, 1},   {24, 3, 520, 4}, {64, 7, 333, 1},
                         {128, 5, 260, 1}, {8, 6, 5000, 7}, {64, 16, 400, 2}};

template <class Body>
void ForEachShape(const Body& body) {
  for (const Shape& s : kShapes) {
    for (int threads : {1, 3}) {
      ForEachIsa(threads, [&](Stream& stream) {
        SCOPED_TRACE("head_dim " + std::to_string(s.head_dim) + ", group " +
                     std::to_string(s.group) + ", " + std::to_string(s.tokens) + " tokens");
        body(stream, s);
      });
    }
  }
}

// The sum over heads of softmax(scale * scores[head]).
inline std::vector<double> SumOfSoftmax(const std::vector<std::vector<double>>& scores,
                                        double scale) {
  std::vector<double> sum(scores[0].size());
  for (const auto& of_head : scores) {
    const double maximum = *std::max_element(of_head.begin(), of_head.end());
    double total = 0;
    for (double x : of_head) total += std::exp(scale * (x - maximum));
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += std::exp(scale * (of_head[i] - maximum)) / total;
    }
  }
  return sum;
}

// Probabilities have a relative error of up to `relative`, which also limits their order.
inline void ExpectSoftmaxSelection(const Result& result,
                                   const std::vector<std::vector<double>>& dots, double scale,
                                   const Range& r, double relative) {
  std::vector<std::vector<double>> scores;
  for (const auto& of_head : dots) {
    scores.emplace_back(of_head.begin() + r.begin, of_head.begin() + r.end);
  }
  const std::vector<double> expected = SumOfSoftmax(scores, scale);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(result.scores[i], expected[i], expected[i] * relative + 1e-36) << i;
  }
  std::vector<double> logs;
  for (double x : expected) logs.push_back(std::log(x + 1e-36));
  ExpectBestWithin(result.positions, logs, r.begin, r.k, 2 * relative);
}

}  // namespace litecache::ops
