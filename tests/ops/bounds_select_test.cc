// Bounds of blocks and the selection by them.
#include "ops/select/bounds_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "select_testing.h"

namespace litecache::ops {
namespace {

// The largest bf16 number that is not above x.
float Bf16AtMost(float x) {
  bf16 y(x);
  if (static_cast<float>(y) > x) y.bits = static_cast<uint16_t>(x < 0 ? y.bits + 1 : y.bits - 1);
  return static_cast<float>(y);
}
float Bf16AtLeast(float x) { return -Bf16AtMost(-x); }

// Block scores [group][blocks], and the set required by the contract, from given or exact scores.
std::vector<int32_t> BestBlocks(const std::vector<std::vector<double>>& scores, const Range& r) {
  const auto blocks = static_cast<int64_t>(scores[0].size());
  std::vector<int64_t> rank(static_cast<size_t>(blocks), blocks);
  for (const auto& of_head : scores) {
    std::vector<int64_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return of_head[static_cast<size_t>(a)] > of_head[static_cast<size_t>(b)];
    });
    for (int64_t i = 0; i < blocks; ++i) {
      int64_t& best = rank[static_cast<size_t>(order[static_cast<size_t>(i)])];
      best = std::min(best, i);
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rank[static_cast<size_t>(a)] < rank[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(std::min(blocks, std::max<int64_t>(1, r.k / 16))));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> positions;
  for (int64_t block : order) {
    const int64_t first = (r.begin / 16 + block) * 16;
    for (int64_t t = std::max(first, r.begin); t < std::min(first + 16, r.end); ++t) {
      if (static_cast<int64_t>(positions.size()) < r.k)
        positions.push_back(static_cast<int32_t>(t));
    }
  }
  return positions;
}

TEST(BoundsSelect, EqualsPlainBoundsAndNeverFallsBelowTheTruth) {
  Random random(82);
  ForEachShape([&](Stream& stream, const Shape& s) {
    const bool integers = random.Integer(0, 1) == 0;
    const BoundsFormat format{.head_dim = s.head_dim};
    const Rows keys = RandomRows(random, s.tokens, s.head_dim, integers, 3);
    const Rows queries = RandomRows(random, s.group, s.head_dim, integers, 2);
    const std::vector<float> flat_keys = Flat(keys), q = Flat(queries);
    const Pages pages(random, s.tokens, 256 * s.page_blocks, format.group_bytes() * s.page_blocks);
    EncodeInParts(random, s.tokens, [&](int64_t begin, int64_t count) {
      const BoundsEncodeWork work{.keys = flat_keys.data() + begin * s.head_dim,
                                  .key_stride = s.head_dim,
                                  .begin = begin,
                                  .count = count,
                                  .metadata = pages.metadata()};
      BoundsEncode(stream, format, {&work, 1});
    });

    std::vector<BoundsSelectWork> work;
    std::vector<Result> results;
    const std::vector<Range> ranges = Ranges(random, s.tokens);
    const auto blocks_of = [](const Range& r) { return (r.end - 1) / 16 + 1 - r.begin / 16; };
    for (const Range& r : ranges) results.emplace_back(r, s.group * blocks_of(r));
    for (Result& r : results) {
      work.push_back({.q = q.data(), .metadata = pages.metadata(), .selection = r.selection});
    }
    RunAll(work, results, [&](auto items) { BoundsSelect(stream, format, s.group, items); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Range& r = ranges[i];
      const int64_t blocks = blocks_of(r);
      std::vector<std::vector<double>> scores(static_cast<size_t>(s.group));
      for (size_t j = 0; j < scores.size(); ++j) {
        for (int64_t b = 0; b < blocks; ++b) {
          const auto first = static_cast<size_t>((r.begin / 16 + b) * 16);
          const size_t last = std::min(first + 16, keys.size());
          double bound = 0, size = 0, truth = -INFINITY;
          for (size_t c = 0; c < queries[j].size(); ++c) {
            float low = INFINITY, high = -INFINITY;
            for (size_t t = first; t < last; ++t) {
              low = std::min(low, keys[t][c]);
              high = std::max(high, keys[t][c]);
            }
            const double x = static_cast<double>(queries[j][c]) * Bf16AtMost(low);
            const double y = static_cast<double>(queries[j][c]) * Bf16AtLeast(high);
            bound += std::max(x, y);
            size += std::abs(std::max(x, y));
          }
          for (size_t t = first; t < last; ++t) truth = std::max(truth, Dot(queries[j], keys[t]));
          const double got =
              results[i].scores[j * static_cast<size_t>(blocks) + static_cast<size_t>(b)];
          // Two chains of f32 sums over the head's elements.
          const double rounding = integers ? 0 : size * static_cast<double>(s.head_dim) * 0x1p-24;
          ASSERT_NEAR(got, bound, rounding) << "block " << b;
          ASSERT_GE(got, truth - rounding) << "block " << b;
          scores[j].push_back(got);
        }
      }
      EXPECT_EQ(results[i].positions, BestBlocks(scores, r))
          << r.begin << " " << r.end << " " << r.k;
    }
  });
}

TEST(BoundsSelect, RoundsOutwards) {
  CpuDevice device(1);
  auto stream = device.CreateStream();
  Random random(83);
  const BoundsFormat format{.head_dim = 1};
  for (int trial = 0; trial < 2000; ++trial) {
    const float key = random.Normal(std::ldexp(1.0f, static_cast<int>(random.Integer(-20, 20))));
    const Pages pages(random, 1, 256, format.group_bytes());
    const BoundsEncodeWork encode{
        .keys = &key, .key_stride = 1, .begin = 0, .count = 1, .metadata = pages.metadata()};
    BoundsEncode(*stream, format, {&encode, 1});
    for (const float q : {1.0f, -1.0f}) {
      int32_t position;
      float score;
      BoundsSelectWork work{
          .q = &q,
          .metadata = pages.metadata(),
          .selection = {.begin = 0, .end = 1, .k = 1, .positions = &position, .scores = &score}};
      BoundsSelect(*stream, format, 1, {&work, 1});
      EXPECT_GE(score, q * key);
      EXPECT_EQ(score, q > 0 ? Bf16AtLeast(key) : -Bf16AtMost(key));
    }
  }
}

}  // namespace
}  // namespace litecache::ops
