#include <gtest/gtest.h>

#include <random>

#include "eval/ruler/search.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

// Compared with a linear scan, on curves with random steps (including flat parts) and with guesses
// that are right or far off.
TEST(LargestFit, FindsWhatAScanFinds) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 500; ++round) {
    const int64_t low = std::uniform_int_distribution<int64_t>(1, 20)(random);
    const int64_t high = low + std::uniform_int_distribution<int64_t>(0, 3000)(random);
    const int step = std::uniform_int_distribution<int>(0, 30)(random);
    std::vector<int64_t> curve(static_cast<size_t>(high) + 1, 100);
    for (int64_t i = low + 1; i <= high; ++i) {
      curve[static_cast<size_t>(i)] =
          curve[static_cast<size_t>(i - 1)] + std::uniform_int_distribution<int>(0, step)(random);
    }
    const int64_t budget = std::uniform_int_distribution<int64_t>(50, curve.back() + 200)(random);
    int64_t expected = low - 1;
    while (expected < high && curve[static_cast<size_t>(expected + 1)] <= budget) ++expected;
    const SizeGuess guess{std::uniform_real_distribution<double>(-100, 300)(random),
                          std::uniform_real_distribution<double>(0, 40)(random)};
    int calls = 0;
    const int64_t found = LargestFit(low, high, budget, guess, [&](int64_t size) {
      ++calls;
      EXPECT_GE(size, low);
      EXPECT_LE(size, high);
      return curve[static_cast<size_t>(std::clamp(size, low, high))];
    });
    // A slack of 0 ends the search early: sizes with equal counts are equally good.
    const int64_t reached = found < low ? 0 : curve[static_cast<size_t>(found)];
    if (found < low) {
      EXPECT_EQ(expected, low - 1);
    } else {
      EXPECT_EQ(reached, curve[static_cast<size_t>(expected)]) << "round " << round;
    }
    EXPECT_LE(calls, 25) << "round " << round;
  }
}

TEST(LargestFit, AGoodGuessTakesFewCounts) {
  int calls = 0;
  const int64_t found = LargestFit(1, 1 << 30, 32768, {150, 25.5}, [&](int64_t size) {
    ++calls;
    return static_cast<int64_t>(152 + 25.2 * static_cast<double>(size));
  });
  EXPECT_EQ(found, static_cast<int64_t>((32768 - 152 + 0.99) / 25.2));
  EXPECT_LE(calls, 6);
}

}  // namespace
}  // namespace litecache::eval
