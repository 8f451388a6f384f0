// Windows and slots against sequences that are processed token by token.
#include "ops/slots/slot_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "test_seed.h"

namespace litecache::ops {
namespace {

constexpr int64_t kQuarters = 4;  // of slots_factor

// Windows whose share and factor are fractions of whole numbers, so that rows and slots can be
// counted without rounding.
struct Case {
  int64_t percent = 0;   // of a share; 0: budget.tokens
  int64_t quarters = 0;  // slots_factor
  SlotWindows<int64_t> windows;

  int64_t Rows(int64_t n) const {
    const auto& [share, tokens, share_context] = windows.budget;
    if (percent == 0) return tokens;
    if (share_context == 0) return std::max<int64_t>((percent * n + 99) / 100, 1);
    // The smallest number whose square is not below the wanted one's.
    const int64_t square = percent * percent * share_context * n;
    auto rows = static_cast<int64_t>(std::sqrt(static_cast<double>(square)) / 100) - 1;
    while (10000 * rows * rows < square) ++rows;
    return std::max<int64_t>(rows, 1);
  }
  int64_t CacheSlots(int64_t n, int64_t candidates) const {
    return std::min((Rows(n) * quarters + kQuarters - 1) / kQuarters, candidates);
  }
  std::string Text() const {
    return "sink " + std::to_string(windows.sink) + ", recent " + std::to_string(windows.recent) +
           ", carry " + std::to_string(windows.carry) + ", percent " + std::to_string(percent) +
           ", of " + std::to_string(windows.budget.share_context) + ", rows " +
           std::to_string(windows.budget.tokens) + ", slots " +
           std::to_string(windows.slots_factor);
  }
};

Case Draw(std::mt19937_64& random) {
  const auto uniform = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Case c{.percent = uniform(0, 3) == 0 ? 0 : uniform(1, 100), .quarters = uniform(4, 12)};
  c.windows = {.sink = uniform(0, 8),
               .recent = uniform(1, 60),
               .carry = uniform(0, 90),
               .budget = {.share = static_cast<double>(c.percent) / 100,
                          .tokens = c.percent == 0 ? uniform(1, 300) : 0,
                          .share_context = uniform(0, 1) == 0 ? 0 : uniform(1, 300)},
               .slots_factor = static_cast<double>(c.quarters) / kQuarters};
  return c;
}

// For every length: which tokens are sink, candidates and recent ones.
template <class Int>
void ExpectWindows(const SlotWindows<Int>& windows, const Case& c, Int n) {
  Int sink = 0, candidates = 0;
  for (Int t = 0; t < n; ++t) {
    const bool recent = n - t <= windows.recent;
    sink += t < windows.sink;
    candidates += t >= windows.sink && !recent;
  }
  ASSERT_EQ(windows.SinkRows(n), sink);
  ASSERT_EQ(windows.Candidates(n), candidates);
  ASSERT_EQ(windows.RecentBegin(n), sink + candidates);
  ASSERT_EQ(windows.Rows(n), c.Rows(n));
  ASSERT_EQ(windows.CacheSlots(n), c.CacheSlots(n, candidates));
  ASSERT_EQ(windows.AllFit(n), candidates <= c.Rows(n));
  if (n > 0) {
    ASSERT_GE(windows.CacheSlots(n), windows.CacheSlots(n - 1));
  }
}

TEST(SlotWindows, TokensFallIntoTheirWindows) {
  std::mt19937_64 random = testing::TestRandom(31);
  for (int i = 0; i < 200; ++i) {
    const Case c = Draw(random);
    SCOPED_TRACE(c.Text());
    for (int64_t n = 0; n < 400; ++n) {
      SCOPED_TRACE(n);
      ExpectWindows<int64_t>(c.windows, c, n);
      ExpectWindows<int32_t>(c.windows.As<int32_t>(), c, static_cast<int32_t>(n));
      if (HasFatalFailure()) return;
    }
  }
}

// Every token is written into its slot in order. All rows that a head may attend then have
// different slots, and so does the row that leaves, because a failed step is repeated.
TEST(SlotWindows, TheRingKeepsWhatIsAttended) {
  std::mt19937_64 random = testing::TestRandom(32);
  for (int i = 0; i < 100; ++i) {
    const Case c = Draw(random);
    SCOPED_TRACE(c.Text());
    const SlotWindows<int64_t>& windows = c.windows;
    const int64_t kept = windows.recent + windows.carry + 1;
    std::vector<int64_t> slots(static_cast<size_t>(windows.CacheBegin()), -1);
    ASSERT_EQ(windows.CacheBegin(), windows.sink + kept);
    for (int64_t n = 1; n < 600; ++n) {
      slots.at(static_cast<size_t>(windows.FixedSlot(n - 1))) = n - 1;
      for (int64_t t = 0; t < n; ++t) {
        if (t >= windows.sink && t < n - kept) continue;
        ASSERT_EQ(slots.at(static_cast<size_t>(windows.FixedSlot(t))), t) << n << " tokens";
      }
    }
  }
}

// A head that was last refreshed at an earlier length also attends the tokens that have become
// recent since then, as far back as the ring reaches.
TEST(SlotWindows, ReusedRowsReachBackToTheLastRefresh) {
  std::mt19937_64 random = testing::TestRandom(33);
  for (int i = 0; i < 300; ++i) {
    const Case c = Draw(random);
    SCOPED_TRACE(c.Text());
    const int64_t n = std::uniform_int_distribution<int64_t>(1, 500)(random);
    const int64_t before = std::uniform_int_distribution<int64_t>(1, n)(random);
    const int64_t refreshed = c.windows.RecentBegin(before);
    int64_t first = refreshed;
    while (n - first > c.windows.recent + c.windows.carry) ++first;
    ASSERT_EQ(c.windows.WindowBegin(n, refreshed), first) << before << " of " << n;
  }
}

TEST(SlotWindows, LongSequences) {
  std::mt19937_64 random = testing::TestRandom(34);
  for (int i = 0; i < 3000; ++i) {
    const Case c = Draw(random);
    const auto n = std::uniform_int_distribution<int32_t>(1 << 12, 1 << 21)(random);
    SCOPED_TRACE(c.Text() + ", n " + std::to_string(n));
    const int64_t candidates = n - c.windows.sink - c.windows.recent;
    for (const int64_t rows : {c.windows.Rows(n), int64_t{c.windows.As<int32_t>().Rows(n)}}) {
      ASSERT_EQ(rows, c.Rows(n));
    }
    ASSERT_EQ(c.windows.Candidates(n), candidates);
    ASSERT_EQ(c.windows.As<int32_t>().CacheSlots(n), c.CacheSlots(n, candidates));
    ASSERT_EQ(c.windows.CacheSlots(n), c.CacheSlots(n, candidates));
  }
}

// Any share: the smallest whole number that is not below it, up to rounding.
TEST(SlotWindows, SharesAreRoundedUp) {
  std::mt19937_64 random = testing::TestRandom(35);
  for (int i = 0; i < 10000; ++i) {
    const double share = std::uniform_real_distribution<double>(1e-4, 1)(random);
    const auto n = std::uniform_int_distribution<int32_t>(1, 1 << 21)(random);
    const int64_t rows = RowBudget<int64_t>{.share = share}.Rows(n);
    ASSERT_EQ(rows, RowBudget<int32_t>{.share = share}.Rows(n)) << share << " of " << n;
    const auto wanted = static_cast<long double>(share) * static_cast<long double>(n);
    ASSERT_GE(static_cast<long double>(rows), wanted - 1e-8L) << share << " of " << n;
    if (rows > 1) {
      ASSERT_LT(static_cast<long double>(rows - 1), wanted) << share << " of " << n;
    }
  }
}

}  // namespace
}  // namespace litecache::ops
