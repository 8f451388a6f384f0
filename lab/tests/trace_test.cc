// Traces: the file format, and their mapping to other shapes.
#include "lab/trace/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "lab/forced/forced_selection.h"
#include "lab/tests/random_trace.h"
#include "lab/trace/bit_stream.h"
#include "lab/trace/replay.h"
#include "lab/trace/replays_trace.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

using ::litecache::testing::TemporaryDirectory;

Trace Parse(const std::string& bytes) {
  return Trace::Parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "t.trace");
}

TEST(Trace, WhatIsWrittenIsReadBack) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 20; ++round) {
    const Trace t = RandomTrace(random);
    const TemporaryDirectory directory;
    t.Save(directory.path() / "a.trace");
    const Trace read = Trace::Load(directory.path() / "a.trace");
    EXPECT_EQ(read.layers, t.layers);
    EXPECT_EQ(read.q_heads, t.q_heads);
    EXPECT_EQ(read.kv_heads, t.kv_heads);
    EXPECT_EQ(read.context, t.context);
    EXPECT_EQ(read.steps, t.steps);
    EXPECT_EQ(read.budget, t.budget);
    EXPECT_EQ(read.model, t.model);
    EXPECT_EQ(read.text_hash, t.text_hash);
    EXPECT_EQ(read.importance, t.importance);
    EXPECT_EQ(read.cosines, t.cosines);
    EXPECT_EQ(read.rows, t.rows);
    EXPECT_EQ(read.distances, t.distances);
    EXPECT_EQ(read.lags, t.lags);
    EXPECT_EQ(read.predicted_cosines, t.predicted_cosines);
    EXPECT_EQ(read.by_need, t.by_need);
    EXPECT_EQ(read.clusters, t.clusters);
    EXPECT_EQ(read.cluster_ids, t.cluster_ids);
  }
}

TEST(Trace, DamagedFilesAreRefusedByName) {
  std::mt19937_64 random = testing::TestRandom();
  const Trace t = RandomTrace(random);
  const std::string bytes = t.Bytes();
  for (size_t length = 0; length < bytes.size(); length += 1 + random() % 7) {
    try {
      Parse(bytes.substr(0, length));
      FAIL() << length << " of " << bytes.size() << " bytes were read";
    } catch (const FileError& error) {
      EXPECT_EQ(std::string(error.what()).find("t.trace"), 0u) << error.what();
    }
  }
  // With one byte changed: an error, or a valid trace.
  for (int round = 0; round < 3000; ++round) {
    std::string changed = bytes;
    changed[random() % changed.size()] ^= static_cast<char>(1 + random() % 255);
    try {
      const Trace read = Parse(changed);
      for (const auto& rows : read.rows) {
        EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
        if (!rows.empty()) {
          EXPECT_GE(rows.front(), 0);
          EXPECT_LT(rows.back(), read.context);
        }
      }
      for (const uint16_t id : read.cluster_ids) EXPECT_LT(id, read.clusters);
    } catch (const FileError&) {
    }
  }
  EXPECT_ERROR(Parse("a file of another kind"), FileError, "litecache-lab record");
  EXPECT_ERROR(Parse(bytes + "xy"), FileError, "bytes follow");
  std::string version = bytes;
  version.replace(version.find("\"version\":3"), 11, "\"version\":2");
  EXPECT_ERROR(Parse(version), FileError, "version 3; record the trace again");
  Trace heads = t;
  heads.importance[0] = 2;
  EXPECT_ERROR(Parse(heads.Bytes()), FileError, "importance");
}

// Beyond the recorded lags, a predicted query differs from the actual one as at the last of them.
TEST(Trace, SimilaritiesOfDistantStepsFollowTheActualQueries) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 30; ++round) {
    const Trace t = RandomTrace(random);
    if (t.distances == 0) continue;
    const int64_t layer = t.layers - 1, head = t.q_heads - 1;
    const auto bounded = [](float x) { return std::clamp(x, -1.0f, 1.0f); };
    for (int64_t a = 0; a < t.steps; ++a) {
      for (int64_t b = 0; b < t.steps; ++b) {
        EXPECT_EQ(t.Cosine(layer, head, {a, 1}, {b, 0}), t.Cosine(layer, head, {b, 0}, {a, 1}));
        EXPECT_EQ(t.Cosine(layer, head, {a, 1}, {b, 1}), t.Cosine(layer, head, {b, 1}, {a, 1}));
        EXPECT_EQ(t.Cosine(layer, head, {a, 0}, {b, 0}), t.Cosine(layer, head, a, b));
        if (std::abs(a - b) <= t.lags) continue;
        const int64_t last = a < b ? a + t.lags : a - t.lags;
        const float actual = t.Cosine(layer, head, a, b) - t.Cosine(layer, head, a, last);
        EXPECT_NEAR(t.Cosine(layer, head, {a, 1}, {b, 0}),
                    bounded(actual + t.Cosine(layer, head, {a, 1}, {last, 0})), 1e-5);
        if (a < b) continue;
        EXPECT_NEAR(t.Cosine(layer, head, {a, 1}, {b, 1}),
                    bounded(actual + t.Cosine(layer, head, {a, 1}, {last, 1})), 1e-5);
      }
    }
  }
}

TEST(BitStream, ReturnsTheNumbersThatWereWritten) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 50; ++round) {
    std::vector<uint32_t> numbers(random() % 100);
    const uint64_t bound = uint64_t{1} << (1 + random() % 30);
    for (uint32_t& number : numbers) {
      number = static_cast<uint32_t>(random() % (random() % 9 == 0 ? uint64_t{1} << 30 : bound));
    }
    BitWriter writer;
    writer.Put(5, 3);
    writer.PutList(numbers);
    writer.Put(0x89abcdef, 32);
    const std::string name = "file", bytes = writer.bytes();
    BitReader reader({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, name);
    EXPECT_EQ(reader.Take(3, "a"), 5u);
    EXPECT_EQ(reader.TakeList(numbers.size(), "b"), numbers);
    EXPECT_EQ(reader.Take(32, "c"), 0x89abcdefu);
    reader.ExpectEnd();
    EXPECT_ERROR(reader.TakeList(9, "list"), FileError, "file: ends within 'list'");
  }
}

TEST(ForcedSelection, HasTheTracesRowsAtTheirRelativePlace) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 20; ++round) {
    const auto trace = std::make_shared<const Trace>(RandomTrace(random, /*whole_blocks=*/true));
    const Trace& t = *trace;
    const Layout layout{t.layers, t.q_heads, t.kv_heads, 16};
    // With the recorded share, the sets are unchanged.
    const double share = static_cast<double>(t.rows[0].size()) / static_cast<double>(t.context);
    const ForcedSelection whole(trace, layout, share);
    const TraceMap map(t, layout);
    for (const int64_t times : {1, 3}) {
      const int64_t past = t.context * times, row = static_cast<int64_t>(random() % 5);
      const int64_t layer = static_cast<int64_t>(random() % static_cast<uint64_t>(t.layers));
      const int64_t head = static_cast<int64_t>(random() % static_cast<uint64_t>(t.kv_heads));
      const int64_t step = map.Step(layer, head, (past + row * 37) % map.period());
      const auto& wanted = t.Rows(layer, head, step);
      std::vector<int32_t> expected;
      for (int64_t p = 0; p < past; ++p) {
        const int64_t block = p / 128 / times;
        if (std::binary_search(wanted.begin(), wanted.end(),
                               static_cast<int32_t>(block * 128 + p % 128))) {
          expected.push_back(static_cast<int32_t>(p));
        }
      }
      std::vector<int32_t> rows(expected.size());
      whole.Rows(layer, head, past, row, 0, past, static_cast<int64_t>(rows.size()), rows.data());
      EXPECT_EQ(rows, expected);

      // Part of the candidates and another count: as many of the trace's rows as possible.
      const int64_t begin = 1 + static_cast<int64_t>(random() % 50), end = past - 77;
      const auto inside = std::count_if(expected.begin(), expected.end(),
                                        [&](int32_t p) { return p >= begin && p < end; });
      for (const int64_t count : {inside / 2, inside + 9}) {
        rows.resize(static_cast<size_t>(count));
        whole.Rows(layer, head, past, row, begin, end, count, rows.data());
        EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
        EXPECT_EQ(std::set<int32_t>(rows.begin(), rows.end()).size(), rows.size());
        int64_t theirs = 0;
        for (const int32_t p : rows) {
          EXPECT_GE(p, begin);
          EXPECT_LT(p, end);
          theirs += std::binary_search(expected.begin(), expected.end(), p) ? 1 : 0;
        }
        EXPECT_EQ(theirs, std::min<int64_t>(inside, count));
      }
      // The tables for a device are the same.
      const auto bits = whole.Bits();
      const int64_t at = ((past + row * 37) % map.period() * t.layers + layer) * t.kv_heads + head;
      for (int64_t p = 0; p < t.context; ++p) {
        EXPECT_EQ(
            bits[static_cast<size_t>(at * whole.words() + p / 32)] >> (p % 32) & 1,
            std::binary_search(wanted.begin(), wanted.end(), static_cast<int32_t>(p)) ? 1u : 0u);
      }
    }
  }
}

TEST(ForcedSelection, SetsOfAnotherShareOverlapAsTheRecordedOnesDo) {
  std::mt19937_64 random = testing::TestRandom();
  auto trace = std::make_shared<Trace>();
  Trace& t = *trace;
  t.layers = t.q_heads = t.kv_heads = 1;
  t.context = 8192;
  t.steps = 5;
  t.importance = {1};
  t.cosines.resize(t.pairs());
  // Four fifths remain from one step to the next.
  std::vector<int32_t> rows(820);
  for (auto& row : rows) row = static_cast<int32_t>(random() % 8192);
  for (int64_t step = 0; step < t.steps; ++step) {
    for (auto& row : rows) {
      if (random() % 5 == 0) row = static_cast<int32_t>(random() % 8192);
    }
    const std::set<int32_t> set(rows.begin(), rows.end());
    t.rows.emplace_back(set.begin(), set.end());
  }
  for (const double share : {0.05, 0.2}) {
    const ForcedSelection selection(trace, {1, 1, 1, 16}, share);
    const auto count = static_cast<int64_t>(share * 8192);
    std::vector<int32_t> a(static_cast<size_t>(count)), b(a);
    double common = 0;
    for (int64_t step = 0; step + 1 < t.steps; ++step) {
      // past advances with each step.
      const int64_t past = 8192 + step;
      selection.Rows(0, 0, past, 0, 0, 8192, count, a.data());
      selection.Rows(0, 0, past + 1, 0, 0, 8192, count, b.data());
      std::vector<int32_t> both;
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
      common += static_cast<double>(both.size()) / static_cast<double>(count);
    }
    EXPECT_NEAR(common / static_cast<double>(t.steps - 1), 0.8, 0.1) << share;
  }
}

TEST(ForcedSelection, RanksEveryClusterOnceTheTracesBestFirst) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 20; ++round) {
    const auto trace = std::make_shared<const Trace>(RandomTrace(random));
    const Layout layout{trace->layers, trace->q_heads, trace->kv_heads, 16};
    const ForcedSelection selection(trace, layout, 0.1);
    const int64_t clusters = 1 + static_cast<int64_t>(random() % 300);
    const int64_t past = static_cast<int64_t>(random() % 1000);
    std::vector<int32_t> ids(static_cast<size_t>(clusters));
    selection.Clusters(0, 0, past, 0, clusters, clusters, ids.data());
    const TraceMap map(*trace, layout);
    const auto ranked = trace->Clusters(0, 0, map.Step(0, 0, past % map.period()));
    // By the rank of the recorded cluster that represents a cluster; unranked ones come last.
    const auto place = [&](int32_t id) {
      const auto recorded = static_cast<uint16_t>(id * trace->clusters / clusters);
      const auto at = std::find(ranked.begin(), ranked.end(), recorded) - ranked.begin();
      return at < std::ssize(ranked) ? at : std::ssize(ranked) + recorded;
    };
    std::vector<int32_t> expected(ids.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int32_t x, int32_t y) { return place(x) < place(y); });
    EXPECT_EQ(ids, expected);
    // With a smaller count: the first of them.
    const int64_t count = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(clusters));
    std::vector<int32_t> first(static_cast<size_t>(clusters), -1);
    selection.Clusters(0, 0, past, 0, clusters, count, first.data());
    std::fill(expected.begin() + count, expected.end(), -1);
    EXPECT_EQ(first, expected);
    EXPECT_EQ(selection.ClusterOrder().size(),
              static_cast<size_t>(selection.period() * trace->layers * trace->kv_heads *
                                  trace->clusters));
  }
}

}  // namespace
}  // namespace litecache::lab
