#include "lab/forced/force_reuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "test_seed.h"

namespace litecache::lab::ops {
namespace {

TEST(ForceOverlap, SelectionsKeepTheirShareOfTheCachedRows) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 300; ++round) {
    const int64_t begin = below(80), end = begin + 1 + below(700);
    std::vector<int32_t> all(static_cast<size_t>(end - begin));
    std::iota(all.begin(), all.end(), static_cast<int32_t>(begin));
    std::shuffle(all.begin(), all.end(), random);
    const int64_t cached_candidates = below(end - begin + 1);
    const std::set<int32_t> has(all.begin(), all.begin() + cached_candidates);
    // Rows that have a slot but are no longer candidates stay excluded.
    std::vector<int32_t> cached(has.begin(), has.end());
    for (int64_t t = 0; t < begin; t += 3) cached.push_back(static_cast<int32_t>(t));
    for (int64_t t = end; t < end + 20; t += 2) cached.push_back(static_cast<int32_t>(t));
    std::shuffle(cached.begin(), cached.end(), random);

    const int64_t count = below(end - begin + 1);
    std::vector<int32_t> selected(static_cast<size_t>(count) + 1, -7);
    const auto kept = static_cast<int32_t>(below(ForcedHead::kWhole + 1));
    const ForceOverlapWork work{.kept = kept,
                                .cached = cached.data(),
                                .cached_count = static_cast<int64_t>(cached.size()),
                                .begin = begin,
                                .end = end,
                                .selected = selected.data(),
                                .count = count};
    ForceOverlap(*stream, {&work, 1});
    EXPECT_EQ(selected.back(), -7);
    selected.pop_back();
    int64_t from_cached = 0;
    for (size_t i = 0; i < selected.size(); ++i) {
      ASSERT_GE(selected[i], begin);
      ASSERT_LT(selected[i], end);
      if (i > 0) {
        ASSERT_LT(selected[i - 1], selected[i]);
      }
      from_cached += static_cast<int64_t>(has.count(selected[i]));
    }
    // The requested number, as far as rows are available.
    const double share = static_cast<double>(kept) / ForcedHead::kWhole;
    const auto wanted = static_cast<double>(count) * share;
    const auto most = static_cast<double>(std::min(count, cached_candidates));
    const auto least =
        static_cast<double>(std::max<int64_t>(0, count - (end - begin - cached_candidates)));
    EXPECT_NEAR(static_cast<double>(from_cached), std::max(std::min(wanted, most), least), 0.51)
        << "round " << round << ": " << count << " of [" << begin << ", " << end << "), "
        << cached_candidates << " cached, share " << share;
    // Repeated with the same rows: the same result.
    std::vector<int32_t> again(static_cast<size_t>(count));
    ForceOverlapWork second = work;
    second.selected = again.data();
    std::reverse(cached.begin(), cached.end());
    ForceOverlap(*stream, {&second, 1});
    EXPECT_EQ(again, selected);
  }
}

TEST(ForceOverlap, TakesRowsFromTheWholeContext) {
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  std::vector<int32_t> cached;
  for (int32_t t = 0; t < 10000; t += 10) cached.push_back(t);
  std::vector<int32_t> selected(1000);
  const ForceOverlapWork work{.kept = ForcedHead::kWhole * 7 / 10,
                              .cached = cached.data(),
                              .cached_count = 1000,
                              .begin = 4,
                              .end = 9936,
                              .selected = selected.data(),
                              .count = 1000};
  ForceOverlap(*stream, {&work, 1});
  for (size_t tenth = 0; tenth < 10; ++tenth) {
    const auto in_tenth = std::count_if(selected.begin(), selected.end(), [&](int32_t t) {
      return static_cast<size_t>(t) / 1000 == tenth;
    });
    EXPECT_NEAR(static_cast<double>(in_tenth), 100, 4) << tenth;
  }
}

}  // namespace
}  // namespace litecache::lab::ops
