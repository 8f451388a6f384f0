#include "ops/sample/exponential_race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/sample/exponential_race_cpu.h"
#include "test_seed.h"

namespace litecache::ops {
namespace {

using testing::TestRandom;

// Test vectors of the Random123 distribution.
TEST(Philox, KnownAnswers) {
  const auto words = [](PhiloxWords counter, PhiloxKey key) {
    const PhiloxWords result = Philox(counter, key);
    return std::array{result.word[0], result.word[1], result.word[2], result.word[3]};
  };
  constexpr uint32_t kAll = 0xffffffff;
  EXPECT_EQ(words({{0, 0, 0, 0}}, {{0, 0}}),
            (std::array{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(words({{kAll, kAll, kAll, kAll}}, {{kAll, kAll}}),
            (std::array{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}),
            (std::array{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
}

RaceDraw RandomDraw(std::mt19937_64& random) {
  return {random(), random() % 3 == 0 ? random() : random() % 1000,
          static_cast<uint32_t>(random() % 5)};
}

TEST(ExponentialRace, NumbersAreExponential) {
  auto random = TestRandom(81);
  const RaceDraw draw = RandomDraw(random);
  constexpr int kTokens = 200000;
  // Of an exponential number E, exp(-E) is uniform.
  constexpr int kBins = 50;
  std::vector<double> counts(kBins);
  double product = 0;  // of neighbours, which must not know of each other
  double before = 0;
  for (int32_t token = 0; token < kTokens; ++token) {
    const double e = ExponentialOf(draw, token);
    ASSERT_GT(e, 0);
    ASSERT_LT(e, 24);
    ++counts[static_cast<size_t>(std::exp(-e) * kBins)];
    product += (e - 1) * before;
    before = e - 1;
  }
  double chi_square = 0;
  for (double count : counts) {
    const double expected = double{kTokens} / kBins;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, kBins + 6 * std::sqrt(2.0 * kBins));
  EXPECT_LT(std::abs(product / kTokens), 6 / std::sqrt(kTokens));
}

// Tokens of probability 1e-10 exist 150,000 times in a vocabulary: small numbers are as fine as
// others, and the change from one word to two leaves no gap.
TEST(ExponentialRace, SmallNumbersHaveTwoWords) {
  auto random = TestRandom(82);
  double least = 1;
  for (int i = 0; i < 100; ++i) {
    const RaceDraw draw = RandomDraw(random);
    const auto token = static_cast<int32_t>(random() % 200000);
    const double smallest = ExponentialOf(draw, token, 0);
    EXPECT_GT(smallest, 0);
    EXPECT_LE(smallest, kWordUnit * 1.000001);
    least = std::min(least, smallest);
    double below = smallest;
    for (uint32_t word : {1u, 2u, 1000u, kShortWord - 1, kShortWord, kShortWord + 1, ~0u}) {
      const double e = ExponentialOf(draw, token, word);
      EXPECT_GT(e, below);
      EXPECT_GT(e, word * kWordUnit);
      below = e;
    }
  }
  EXPECT_LT(least, 0.2 * kWordUnit);
}

std::vector<float> RandomRow(std::mt19937_64& random, size_t vocab, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  return row;
}

TEST(ExponentialRace, AVocabularysRaceIsThatOfEachToken) {
  auto random = TestRandom(83);
  for (const size_t vocab : {1, 2, 15, 63, 64, 65, 127, 1001, 32000, 131075}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> row = RandomRow(random, vocab, round % 4 == 0 ? 0.01f : 3.0f);
      if (round % 2 == 0) {
        for (size_t i = 0; i + 1 < vocab; i += 1 + random() % 5) {
          row[i] = -std::numeric_limits<float>::infinity();
        }
      }
      const auto best =
          static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      const float scale = round % 3 == 0 ? 1.0f : 0.7f;
      const RaceDraw draw = RandomDraw(random);
      double first = INFINITY, second = INFINITY;
      int32_t expected = -1;
      for (size_t i = 0; i < vocab; ++i) {
        const double depth = (double{row[i]} - row[static_cast<size_t>(best)]) * scale;
        const double time = ExponentialOf(draw, static_cast<int32_t>(i)) / std::exp(depth);
        second = std::min(second, std::max(time, first));
        if (time >= first) continue;
        first = time;
        expected = static_cast<int32_t>(i);
      }
      if (second < first * (1 + 1e-5)) continue;  // a weight's rounding may decide
      ASSERT_EQ(cpu::DrawToken(row, best, scale, draw), expected) << vocab << " tokens";
    }
  }
}

// A draft's logits are nearly those of the verification: the same token must be drawn nearly
// always.
TEST(ExponentialRace, SimilarDistributionsDrawTheSameToken) {
  auto random = TestRandom(84);
  constexpr size_t kVocab = 1500;
  constexpr int kDraws = 10000;
  for (const float change : {0.02f, 0.1f, 0.3f}) {
    const std::vector<float> a = RandomRow(random, kVocab, 2);
    std::vector<float> b = RandomRow(random, kVocab, change);
    std::vector<double> p(kVocab), q(kVocab);
    double of_p = 0, of_q = 0;
    for (size_t i = 0; i < kVocab; ++i) {
      b[i] += a[i];
      of_p += p[i] = std::exp(double{a[i]});
      of_q += q[i] = std::exp(double{b[i]});
    }
    double variation = 0;
    for (size_t i = 0; i < kVocab; ++i) variation += std::abs(p[i] / of_p - q[i] / of_q) / 2;
    const auto best_of = [](const std::vector<float>& row) {
      return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    };
    int differ = 0;
    for (int i = 0; i < kDraws; ++i) {
      const RaceDraw draw = RandomDraw(random);
      differ += cpu::DrawToken(a, best_of(a), 1, draw) != cpu::DrawToken(b, best_of(b), 1, draw);
    }
    const double bound = 2 * variation / (1 + variation) * kDraws;
    EXPECT_LT(differ, bound + 6 * std::sqrt(bound)) << "total variation " << variation;
    EXPECT_GT(differ, variation * kDraws - 6 * std::sqrt(variation * kDraws));
  }
}

}  // namespace
}  // namespace litecache::ops
