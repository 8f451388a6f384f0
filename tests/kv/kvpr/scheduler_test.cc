// l* in closed form against a search over all splits.

#include "kv/kvpr/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "test_seed.h"

namespace litecache::kv::kvpr {
namespace {

// Eq. 8 to 11 as published: b sequences of s tokens, h values of p bytes.
double PaperTime(double b, double s, double h, double p, double v_com, double v_gpu, double l) {
  const double m_x = b * l * h * p;
  const double m_kv = 2 * b * (s - l) * h * p;
  const double n = 4 * b * l * h * h;
  return m_x / v_com + std::max(n / v_gpu, m_kv / v_com);
}

TEST(KvprScheduler, TheBoundIsThePapers) {
  std::mt19937_64 random = testing::TestRandom();
  std::uniform_real_distribution<double> unit(0, 1);
  for (int i = 0; i < 1000; ++i) {
    const double h = std::floor(1 + 8000 * unit(random)), p = unit(random) < 0.5 ? 2 : 4;
    const double v_com = std::exp(20 + 5 * unit(random)), v_gpu = std::exp(24 + 10 * unit(random));
    const auto tokens = static_cast<int64_t>(1 + random() % 5000);
    const auto split = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1));
    const double b = static_cast<double>(1 + random() % 64);
    const TokenCosts costs =
        CostsOf({.input_bytes = h * p, .row_bytes = 2 * h * p, .flops = 4 * h * h}, v_com, v_gpu);
    const double expected =
        PaperTime(b, static_cast<double>(tokens), h, p, v_com, v_gpu, static_cast<double>(split));
    EXPECT_NEAR(b * TransferTime(costs, false, split, tokens), expected, 1e-9 * expected);
    // Chunked, with the device otherwise idle: no later than eq. 11, and no sooner than either
    // resource allows.
    const double chunked = TransferTime(costs, true, split, tokens);
    EXPECT_LE(chunked, TransferTime(costs, false, split, tokens) * (1 + 1e-12));
    EXPECT_GE(chunked, static_cast<double>(split) * costs.recompute);
    EXPECT_GE(chunked, static_cast<double>(split) * costs.input +
                           static_cast<double>(tokens - split) * costs.row);
  }
}

TEST(KvprScheduler, ClosedFormEqualsASearch) {
  std::mt19937_64 random = testing::TestRandom(1);
  std::uniform_real_distribution<double> unit(0, 1);
  int ends = 0, inner = 0;
  for (int i = 0; i < 20000; ++i) {
    TokenCosts costs;
    costs.row = std::exp(6 * unit(random) - 3);
    // From inputs of no bytes to inputs larger than rows (GQA), from free products to extremely
    // slow ones.
    costs.input = unit(random) < 0.1 ? 0 : costs.row * 1.5 * unit(random);
    costs.recompute = unit(random) < 0.05 ? 0 : costs.row * std::exp(16 * unit(random) - 8);
    const bool chunked = random() % 2 == 0;
    // From nothing to more than the link's time for all rows.
    costs.other = unit(random) < 0.3 ? 0 : costs.row * std::exp(12 * unit(random) - 3);
    const auto tokens = static_cast<int64_t>(random() % (i % 10 == 0 ? 2000 : 60));
    double least = HUGE_VAL;
    for (int64_t l = 0; l <= tokens; ++l) {
      least = std::min(least, TransferTime(costs, chunked, l, tokens));
    }
    const int64_t split = BestSplit(costs, chunked, tokens);
    ASSERT_GE(split, 0);
    ASSERT_LE(split, tokens);
    ASSERT_LE(TransferTime(costs, chunked, split, tokens), least * (1 + 1e-12))
        << "input " << costs.input << " row " << costs.row << " recompute " << costs.recompute
        << " other " << costs.other << " tokens " << tokens << " chunked " << chunked << " split "
        << split;
    (split == 0 || split == tokens ? ends : inner) += 1;
  }
  EXPECT_GT(ends, 2000);
  EXPECT_GT(inner, 2000);
}

TEST(KvprScheduler, WhatElseTheDeviceDoesCountsWhereItIsBeside) {
  TokenCosts costs{.input = 1, .row = 2, .recompute = 1.5};
  // 120 of recomputation in parallel with 120 of the link.
  EXPECT_EQ(BestSplit(costs, true, 100), 80);
  EXPECT_EQ(BestSplit(costs, false, 100), 57);
  costs.other = 50;  // 50 + 90 in parallel with 140
  EXPECT_EQ(BestSplit(costs, true, 100), 60);
  EXPECT_EQ(TransferTime(costs, true, 60, 100), 140);
  EXPECT_EQ(BestSplit(costs, false, 100), 57);  // eq. 11
  costs.other = 1000;
  EXPECT_EQ(BestSplit(costs, true, 100), 0);
}

TEST(KvprScheduler, WhatIsRecomputedIsNearlyTheSplitAndLeavesWholePages) {
  std::mt19937_64 random = testing::TestRandom(2);
  for (int i = 0; i < 20000; ++i) {
    const auto tokens = static_cast<int64_t>(random() % 700);
    const auto split = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1));
    const auto page = static_cast<int64_t>(1 + random() % 100);
    const bool first_only = random() % 4 == 0;
    const offload::Recomputed got = PlaceSplit(split, tokens, page, first_only);
    SCOPED_TRACE(::testing::Message() << split << " of " << tokens << ", pages of " << page);
    ASSERT_GE(got.first, 0);
    ASSERT_GE(got.last, 0);
    ASSERT_LE(got.first + got.last, tokens);
    const int64_t unit = std::min(kSplitUnit, page), over = tokens % page;
    if (first_only) {
      ASSERT_EQ(got.last, 0);
    }
    if (got.last > 0) {
      ASSERT_EQ(got.last, over);
    }
    ASSERT_TRUE(got.first % unit == 0 || got.first == tokens || got.first == tokens - over);
    // Rows of the last page are transferred only if they are too many to recompute, or must not be
    // recomputed.
    if (split >= over && !first_only && split < tokens) {
      ASSERT_EQ(got.last, over);
    }
    if (split == tokens) {
      ASSERT_EQ(got.first, tokens);
    }
    const int64_t all = got.first + got.last;
    if (all < tokens - over) {
      ASSERT_LE(std::abs(all - split), unit / 2);
    }
    ASSERT_LE(all, split + unit / 2);
  }
}

TEST(KvprScheduler, SequencesTogetherRecomputeTheSplit) {
  std::mt19937_64 random = testing::TestRandom(3);
  for (int round = 0; round < 500; ++round) {
    const auto page = static_cast<int64_t>(1 + random() % 40);
    const auto share = static_cast<int64_t>(random() % 101);
    const offload::Recompute recompute{
        .split = [share](int64_t past, int64_t) { return past * share / 100; },
        .place = [page](int64_t split,
                        int64_t past) { return PlaceSplit(split, past, page, false); }};
    const auto sequences = static_cast<int64_t>(1 + random() % 100);
    const auto past = static_cast<int64_t>(2 * page + random() % 300);
    int64_t over = 0, recomputed = 0;
    for (int64_t i = 0; i < sequences; ++i) {
      const offload::Recomputed got = offload::NextSplit(recompute, past, sequences, &over);
      ASSERT_GE(got.first, 0);
      ASSERT_LE(got.first + got.last, past);
      recomputed += got.first + got.last;
    }
    // Up to the error of one sequence: half a unit, or the last page.
    EXPECT_LE(std::abs(recomputed - sequences * (past * share / 100)), page + kSplitUnit)
        << "page " << page << " share " << share << " past " << past;
  }
}

TEST(KvprScheduler, InputsThatOutweighRowsAreNeverMoved) {
  // Llama 3 8B: 4096 values in, 2 x 1024 out.
  const TokenWork gqa{.input_bytes = 8192, .row_bytes = 4096, .flops = 4.0 * 4096 * 1024};
  EXPECT_TRUE(NeverRecomputes(gqa));
  EXPECT_FALSE(NeverRecomputes({.input_bytes = 8192, .row_bytes = 16384, .flops = 1}));
  for (const double flops : {1e9, 1e13, 1e18}) {
    for (const bool chunked : {false, true}) {
      EXPECT_EQ(BestSplit(CostsOf(gqa, 1e10, flops), chunked, 5000), 0);
    }
  }
  // With free products: all of it, for MHA.
  const TokenWork mha{.input_bytes = 8192, .row_bytes = 16384, .flops = 1};
  EXPECT_EQ(BestSplit(CostsOf(mha, 1e10, 1e18), true, 5000), 5000);
  EXPECT_EQ(BestSplit(CostsOf(mha, 1e10, 1e-3), true, 5000), 0);
  EXPECT_EQ(BestSplit(CostsOf(mha, 1e10, 1e12), false, 0), 0);
}

}  // namespace
}  // namespace litecache::kv::kvpr
