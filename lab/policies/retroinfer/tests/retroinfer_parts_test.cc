// The parts of policy retroinfer, each against a plain oracle.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <random>

#include "device/cpu/cpu_device.h"
#include "lab/policies/common/segmented_kmeans.h"
#include "lab/policies/retroinfer/block_cache.h"
#include "lab/policies/retroinfer/options.h"
#include "lab/policies/retroinfer/shape.h"
#include "test_seed.h"

namespace litecache::lab {
namespace {

// ---- block cache ----

// The published rules with a list: hits move to the front, the best in front; misses are admitted
// in rank order until one does not fit into the capacity together with those before it.
class ListCache {
 public:
  explicit ListCache(int64_t blocks) : blocks_(blocks) {}
  bool Has(int32_t cluster) const { return sizes_.contains(cluster); }
  void Grow(int64_t blocks) { blocks_ = blocks; }
  int64_t Update(const std::vector<int32_t>& hits, const std::vector<int32_t>& misses,
                 const std::vector<int32_t>& counts) {
    for (auto hit = hits.rbegin(); hit != hits.rend(); ++hit) {
      order_.remove(*hit);
      order_.push_front(*hit);
    }
    int64_t needed = 0;
    size_t admitted = 0;
    while (admitted < misses.size() && needed + counts[admitted] <= blocks_) {
      needed += counts[admitted++];
    }
    const auto used = [&] {
      int64_t sum = 0;
      for (const auto& [cluster, count] : sizes_) sum += count;
      return sum;
    };
    while (used() + needed > blocks_) {
      sizes_.erase(order_.back());
      order_.pop_back();
    }
    for (size_t i = 0; i < admitted; ++i) {
      order_.push_front(misses[i]);
      sizes_[misses[i]] = counts[i];
    }
    return static_cast<int64_t>(admitted);
  }
  std::vector<int32_t> Contents() const { return {order_.begin(), order_.end()}; }

 private:
  int64_t blocks_;
  std::list<int32_t> order_;
  std::map<int32_t, int64_t> sizes_;
};

TEST(BlockCache, IsTheListItReplaces) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 30; ++round) {
    int64_t clusters = 1 + static_cast<int64_t>(random() % 60);
    int64_t blocks = static_cast<int64_t>(random() % 40);
    BlockCache cache;
    cache.Resize(clusters, blocks);
    ListCache oracle(blocks);
    std::vector<int32_t> sizes;
    for (int64_t c = 0; c < 200; ++c) sizes.push_back(1 + static_cast<int32_t>(random() % 5));
    for (int step = 0; step < 200; ++step) {
      if (random() % 40 == 0) {
        clusters = std::min<int64_t>(clusters + static_cast<int64_t>(random() % 20), 200);
        blocks += static_cast<int64_t>(random() % 10);
        cache.Resize(clusters, blocks);
        oracle.Grow(blocks);
      }
      std::vector<int32_t> ids(static_cast<size_t>(clusters));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
      std::shuffle(ids.begin(), ids.end(), random);
      ids.resize(std::min<size_t>(ids.size(), random() % 12));
      std::vector<int32_t> hits, misses, counts;
      for (const int32_t id : ids) {
        ASSERT_EQ(cache.First(id) != BlockCache::kNone, oracle.Has(id));
        if (oracle.Has(id)) {
          hits.push_back(id);
        } else {
          misses.push_back(id);
          counts.push_back(sizes[static_cast<size_t>(id)]);
        }
      }
      ASSERT_EQ(cache.Update(hits, misses, counts), oracle.Update(hits, misses, counts));
      ASSERT_EQ(cache.Contents(), oracle.Contents());
      // Every cached cluster has its blocks, and no block belongs to two clusters.
      std::vector<int> owners(static_cast<size_t>(blocks), 0);
      for (const int32_t id : cache.Contents()) {
        int32_t count = 0;
        for (int32_t block = cache.First(id); block != BlockCache::kNone;
             block = cache.Next(block)) {
          ++owners[static_cast<size_t>(block)];
          ++count;
        }
        ASSERT_EQ(count, sizes[static_cast<size_t>(id)]);
      }
      for (const int owner : owners) ASSERT_LE(owner, 1);
    }
    cache.Clear();
    EXPECT_TRUE(cache.Contents().empty());
  }
}

// ---- k-means ----

struct Keys {
  ops::RowFormat format;
  std::vector<std::vector<double>> values;  // as stored
  std::vector<std::vector<std::byte>> pages;
  std::vector<std::byte*> addresses;
  int64_t page_tokens;
  ops::PagedRows rows() { return {addresses.data(), page_tokens, format}; }
};

Keys DrawKeys(std::mt19937_64& random, DType dtype, int64_t tokens, int64_t d) {
  std::normal_distribution<float> normal;
  Keys keys{.format = ops::FormatOf(dtype, d), .page_tokens = 37};
  const ops::RowFormat f32{ops::RowEncoding::kF32, d};
  std::vector<float> row(static_cast<size_t>(2 * d)), offset(static_cast<size_t>(d));
  std::vector<std::vector<float>> centers;
  for (int i = 0; i < 20; ++i) {
    for (float& x : row) x = 2 * normal(random);
    centers.push_back(row);
  }
  for (float& x : offset) x = 3 * normal(random);
  for (int64_t t = 0; t < tokens; ++t) {
    if (t % keys.page_tokens == 0) {
      keys.pages.emplace_back(static_cast<size_t>(keys.page_tokens) * keys.format.row_bytes());
      keys.addresses.push_back(keys.pages.back().data());
    }
    const auto& center = centers[random() % centers.size()];
    for (size_t i = 0; i < row.size(); ++i) row[i] = center[i] + normal(random);
    for (size_t i = 0; i < offset.size(); ++i) row[i] += offset[i];
    std::byte* stored = keys.rows().Row(t);
    ops::ConvertRow(f32, reinterpret_cast<std::byte*>(row.data()), keys.format, stored);
    ops::ConvertRow(keys.format, stored, f32, reinterpret_cast<std::byte*>(row.data()));
    keys.values.emplace_back(row.begin(), row.begin() + d);
  }
  return keys;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class Means : public ::testing::TestWithParam<std::tuple<DType, int>> {};

// Every iteration is checked in double precision against the centroids of the previous one: a
// token's centroid is the best up to rounding.
TEST_P(Means, EveryIterationIsThePublishedOne) {
  const auto& [dtype, segments] = GetParam();
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  const int64_t d = 8 + static_cast<int64_t>(random() % 40), skip = 5;
  const int64_t tokens = 700 + static_cast<int64_t>(random() % 300);
  const int64_t clusters = segments * (5 + static_cast<int64_t>(random() % 10));
  Keys keys = DrawKeys(random, dtype, tokens + skip, d);
  KMeansResult result;
  KMeansTrace trace;
  ASSERT_TRUE(SegmentedKMeans(*stream,
                              {.rows = keys.rows(),
                               .begin = skip,
                               .count = tokens,
                               .clusters = clusters,
                               .segments = segments,
                               .iterations = 10},
                              &result, &trace));
  ASSERT_EQ(trace.assignments.size(), 10u);

  std::vector<std::vector<double>> points(keys.values.begin() + skip, keys.values.end());
  std::vector<double> mean(static_cast<size_t>(d), 0.0);
  for (const auto& point : points) {
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += point[i] / static_cast<double>(tokens);
  }
  for (auto& point : points) {
    for (size_t i = 0; i < mean.size(); ++i) point[i] -= mean[i];
  }
  std::vector<std::vector<double>> centroids;
  for (int64_t c = 0; c < clusters; ++c) {
    const double middle = (static_cast<double>(c) + 0.5) * static_cast<double>(tokens) /
                          static_cast<double>(clusters);
    centroids.push_back(points[static_cast<size_t>(middle + 1e-9)]);
  }
  const int64_t in_segment = tokens / segments, of_segment = clusters / segments;
  std::vector<int64_t> sizes;
  for (int iteration = 0; iteration < 10; ++iteration) {
    const bool last = iteration == 9;
    const auto& assignment = trace.assignments[static_cast<size_t>(iteration)];
    std::vector<std::vector<double>> sums(static_cast<size_t>(clusters),
                                          std::vector<double>(static_cast<size_t>(d), 0.0));
    sizes.assign(static_cast<size_t>(clusters), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      const auto& point = points[static_cast<size_t>(t)];
      const int64_t segment = t / in_segment;
      const int32_t chosen = assignment[static_cast<size_t>(t)];
      if (!last && segment >= segments) {
        ASSERT_EQ(chosen, -1);
        continue;
      }
      const int64_t begin = last ? 0 : segment * of_segment;
      const int64_t end = last ? clusters : begin + of_segment;
      ASSERT_GE(chosen, begin);
      ASSERT_LT(chosen, end);
      double best = -HUGE_VAL;
      for (int64_t c = begin; c < end; ++c) {
        best = std::max(best, Dot(point, centroids[static_cast<size_t>(c)]));
      }
      const auto& centroid = centroids[static_cast<size_t>(chosen)];
      // Products and centroids are f32; keys are a few units away from the origin before they are
      // centred.
      const double scale =
          std::sqrt(Dot(point, point) * Dot(centroid, centroid)) + std::sqrt(Dot(mean, mean));
      ASSERT_GE(Dot(point, centroid), best - 1e-5 * (scale + 1))
          << "iteration " << iteration << " token " << t;
      for (size_t i = 0; i < point.size(); ++i) sums[static_cast<size_t>(chosen)][i] += point[i];
      ++sizes[static_cast<size_t>(chosen)];
    }
    for (size_t c = 0; c < sums.size(); ++c) {
      if (sizes[c] == 0) continue;
      const double length = last ? static_cast<double>(sizes[c]) : std::sqrt(Dot(sums[c], sums[c]));
      for (size_t i = 0; i < sums[c].size(); ++i) centroids[c][i] = sums[c][i] / length;
    }
  }
  for (size_t c = 0; c < centroids.size(); ++c) {
    EXPECT_EQ(result.sizes[c], sizes[c]);
    for (size_t i = 0; i < mean.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(result.centroids[c * mean.size() + i]),
                  centroids[c][i] + mean[i], 2e-5 * (1 + std::abs(mean[i])));
    }
  }
  EXPECT_EQ(result.assignment, trace.assignments.back());
}

INSTANTIATE_TEST_SUITE_P(All, Means,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(1, 3)));

TEST(SegmentedKMeans, StopsWhenItIsCancelled) {
  std::mt19937_64 random = testing::TestRandom();
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  Keys keys = DrawKeys(random, DType::kF32, 100, 16);
  const std::atomic<bool> cancel{true};
  KMeansResult result;
  EXPECT_FALSE(SegmentedKMeans(*stream,
                               {.rows = keys.rows(),
                                .begin = 0,
                                .count = 100,
                                .clusters = 8,
                                .iterations = 3,
                                .cancel = &cancel},
                               &result));
}

// ---- sizes ----

TEST(RetroShape, PublishedSizes) {
  const Layout layout{
      .layers = 32, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .dtype = DType::kBF16};
  const RetroShape shape(layout, {});
  // 15 segments: lcm(8, 15) = 120 clusters, 7500 / 120 = 62.5, rounded down.
  const WaveGrowth at_120k = shape.Prompt(120000);
  EXPECT_EQ(at_120k.segments, 15);
  EXPECT_EQ(at_120k.clusters, 7440);
  EXPECT_EQ(at_120k.nprobe, 134);
  EXPECT_EQ(at_120k.estimated, 1726);
  const WaveGrowth at_8k = shape.Prompt(8192);
  EXPECT_EQ(at_8k.segments, 1);
  EXPECT_EQ(at_8k.clusters, 512);
  EXPECT_EQ(at_8k.nprobe, 9);
  EXPECT_EQ(at_8k.estimated, 119);
  EXPECT_EQ(shape.update.clusters, 64);
  EXPECT_EQ(shape.update.nprobe, 1);
  EXPECT_EQ(shape.update.estimated, 15);
  EXPECT_EQ(shape.cluster_blocks, 2);
  EXPECT_EQ(shape.CacheBlocks(134), 804);
  EXPECT_EQ(shape.BufferBlocks(134), 1072);
  EXPECT_EQ(shape.least_indexed(), 1092);
}

// The reserved capacity is enough whatever part of a sequence is its prompt, and never decreases.
TEST(RetroShape, RoomIsEnoughForAnyPrompt) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 60; ++round) {
    KvOptions options;
    RetroInferOptions& o = options.settings.Of<RetroInferOptions>();
    options.sink_tokens = static_cast<int64_t>(random() % 6);
    options.recent_tokens = 1 + static_cast<int64_t>(random() % 90);
    o.cluster_tokens = 1 + static_cast<int64_t>(random() % 40);
    o.segment_tokens = 50 + static_cast<int64_t>(random() % 3000);
    o.update_tokens = 8 + static_cast<int64_t>(random() % 500);
    o.retrieval = static_cast<double>(random() % 100) / 200;
    o.estimation = static_cast<double>(random() % 100) / 200;
    const RetroShape shape(
        {.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32}, options);
    TierBytes before;
    for (int64_t n = 1; n < 6000; n += 1 + static_cast<int64_t>(random() % 50)) {
      const TierBytes now = shape.BytesFor(n);
      ASSERT_TRUE(before.FitsIn(now)) << n;
      before = now;
    }
    for (int tries = 0; tries < 50; ++tries) {
      const int64_t prompt = 1 + static_cast<int64_t>(random() % 3000);
      const int64_t n = prompt + static_cast<int64_t>(random() % 3000);
      WaveGrowth sum;
      int64_t end = shape.sink;
      if (prompt >= shape.least_indexed()) {
        sum = shape.Prompt(prompt);
        ASSERT_LE(sum.clusters, prompt - shape.sink - shape.recent);
        ASSERT_EQ(sum.clusters % sum.segments, 0);
        end = prompt - shape.recent;
      }
      // As early as the rows exist.
      for (; end + o.update_tokens <= n - 1; end += o.update_tokens) {
        sum.clusters += shape.update.clusters;
        sum.nprobe += shape.update.nprobe;
      }
      ASSERT_LT(sum.clusters, shape.ClusterRoom(n) + (n <= shape.most_steady() ? 1 : 0));
      ASSERT_LE(sum.nprobe, shape.NprobeRoom(n));
    }
  }
}

}  // namespace
}  // namespace litecache::lab
