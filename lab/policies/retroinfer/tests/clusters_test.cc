#include "lab/policies/retroinfer/ops/clusters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "lab/policies/common/kmeans.h"
#include "ops/attention/row_attention.h"
#include "ops/paged_testing.h"
#include "relative_error.h"

namespace litecache::lab::ops {
namespace {

struct Case {
  int threads;
  RowEncoding encoding;
  int64_t head_dim, group;
};

class Clusters : public ::testing::TestWithParam<Case> {};

// Pages of clusters, some of which are empty.
struct Index {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> pages;
  PagedClusters clusters;
};

Index MakeIndex(Random& random, const RowFormat& format, int64_t count, int64_t page_clusters) {
  Index index;
  const size_t bytes = static_cast<size_t>(page_clusters) * (format.row_bytes() + 4);
  for (int64_t first = 0; first < count; first += page_clusters) {
    index.memory.emplace_back(bytes, std::byte{0xff});
    index.pages.push_back(index.memory.back().data());
  }
  index.clusters = {index.pages.data(), page_clusters, format};
  for (int64_t c = 0; c < count; ++c) {
    FillRow(random, format, index.clusters.Row(c));
    index.clusters.Size(c) =
        random.Integer(0, 4) == 0 ? 0 : static_cast<int32_t>(random.Integer(1, 40));
  }
  index.clusters.Size(random.Integer(0, count - 1)) = 3;  // at least one
  return index;
}

// A head's selection and output against double precision: clusters by the group's summed softmax;
// the state of the estimated ones merged with the attention of exact rows.
TEST_P(Clusters, SelectedAndEstimatedAsInDouble) {
  const auto& [threads, encoding, d, group] = GetParam();
  Random random;
  CpuDevice device(threads);
  const auto stream = device.CreateStream();
  const RowFormat format{encoding, d};
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  const int64_t heads = 5;
  std::vector<Index> indices;
  std::vector<std::vector<float>> q, logits, scores, states, outs;
  std::vector<std::vector<int32_t>> ids;
  std::vector<ClusterSelectWork> work;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t count = h == 0 ? 1 : h == 1 ? 2600 : random.Integer(2, 700);
    indices.push_back(MakeIndex(random, format, count, random.Integer(1, 90)));
    const int64_t ranked = random.Integer(h == 2 ? 0 : 1, 40);
    const int64_t unranked = h == 3 ? 0 : random.Integer(1, h == 1 ? 900 : 200);
    q.emplace_back(static_cast<size_t>(group * d));
    for (float& x : q.back()) x = random.Normal(2);
    logits.emplace_back(static_cast<size_t>(group * count));
    scores.emplace_back(static_cast<size_t>(count));
    ids.emplace_back(static_cast<size_t>(std::min(ranked + unranked, count)));
    work.push_back(
        {.q = nullptr, .scale = scale, .count = count, .ranked = ranked, .unranked = unranked});
  }
  for (size_t h = 0; h < work.size(); ++h) {
    work[h].q = q[h].data();
    work[h].clusters = indices[h].clusters;
    work[h].clusters.pages = indices[h].pages.data();
    work[h].logits = logits[h].data();
    work[h].scores = scores[h].data();
    work[h].ids = ids[h].data();
  }
  ClusterSelect(*stream, group, work);

  for (size_t h = 0; h < work.size(); ++h) {
    const ClusterSelectWork& w = work[h];
    std::vector<double> sum(static_cast<size_t>(w.count), 0.0);
    std::vector<std::vector<double>> x(static_cast<size_t>(group));
    int64_t filled = 0;
    for (int64_t c = 0; c < w.count; ++c) filled += w.clusters.Size(c) > 0;
    for (int64_t j = 0; j < group; ++j) {
      double maximum = -HUGE_VAL, total = 0;
      auto& of_head = x[static_cast<size_t>(j)];
      for (int64_t c = 0; c < w.count; ++c) {
        double product = 0;
        for (int64_t i = 0; i < d; ++i) {
          product += static_cast<double>(w.q[j * d + i]) * RowValue(format, w.clusters.Row(c), i);
        }
        of_head.push_back(product * static_cast<double>(scale));
        ASSERT_NEAR(static_cast<double>(w.logits[j * w.count + c]), of_head.back(), 1e-4);
        if (w.clusters.Size(c) > 0) maximum = std::max(maximum, of_head.back());
      }
      for (int64_t c = 0; c < w.count; ++c) {
        if (w.clusters.Size(c) > 0) total += std::exp(of_head[static_cast<size_t>(c)] - maximum);
      }
      for (int64_t c = 0; c < w.count; ++c) {
        sum[static_cast<size_t>(c)] += std::exp(of_head[static_cast<size_t>(c)] - maximum) / total;
      }
    }
    ASSERT_EQ(w.ranked_count, std::min(w.ranked, filled));
    ASSERT_EQ(w.ranked_count + w.unranked_count, std::min(w.ranked + w.unranked, filled));
    const auto score = [&](int64_t i) { return sum[static_cast<size_t>(w.ids[i])]; };
    std::set<int32_t> chosen;
    double least = HUGE_VAL;
    for (int64_t i = 0; i < w.ranked_count + w.unranked_count; ++i) {
      ASSERT_GT(w.clusters.Size(w.ids[i]), 0);
      ASSERT_TRUE(chosen.insert(w.ids[i]).second);
      if (i > 0 && i < w.ranked_count) {
        ASSERT_LE(score(i), score(i - 1) * 1.0001 + 1e-9);
      }
      if (i >= w.ranked_count && w.ranked_count > 0) {
        ASSERT_LE(score(i), score(w.ranked_count - 1) * 1.0001 + 1e-9);
      }
      if (i > w.ranked_count) {
        ASSERT_LT(w.ids[i - 1], w.ids[i]);
      }
      least = std::min(least, score(i));
    }
    for (int64_t c = 0; c < w.count; ++c) {
      if (w.clusters.Size(c) == 0 || chosen.contains(static_cast<int32_t>(c))) continue;
      ASSERT_LE(sum[static_cast<size_t>(c)], least * 1.0001 + 1e-9);
    }
  }

  // All selected clusters are estimated, in addition to a few exact rows.
  std::vector<ClusterEstimateWork> estimates;
  std::vector<RowAttentionHead> attends;
  std::vector<PagedBlock> blocks;
  std::vector<RowPart> parts;
  const int64_t state = StateSize(group, d);
  for (size_t h = 0; h < work.size(); ++h) {
    const int64_t count = h == 4 ? 0 : work[h].ranked_count + work[h].unranked_count;
    states.emplace_back(static_cast<size_t>(EstimateStates(count) * state), NAN);
    estimates.push_back({.clusters = work[h].clusters,
                         .logits = work[h].logits,
                         .logit_stride = work[h].count,
                         .ids = work[h].ids,
                         .count = count,
                         .states = states.back().data()});
    outs.emplace_back(static_cast<size_t>(group * d), NAN);
    const int64_t rows = h == 1 ? 900 : random.Integer(1, 30);
    blocks.emplace_back(random, format, rows, 16);
    for (int64_t r = 0; r < rows; ++r) FillRow(random, format, blocks.back().rows().Row(r));
    parts.push_back({.rows = blocks.back().rows(), .begin = 0, .count = rows});
  }
  ClusterEstimate(*stream, group, estimates);
  for (size_t h = 0; h < work.size(); ++h) {
    parts[h].rows = blocks[h].rows();  // the blocks have moved
    attends.push_back({.q = q[h].data(),
                       .out = outs[h].data(),
                       .parts = {&parts[h], 1},
                       .states = states[h].data(),
                       .state_count = EstimateStates(estimates[h].count)});
  }
  RowAttention(*stream, format, group, attends, scale);
  for (size_t h = 0; h < work.size(); ++h) {
    for (int64_t j = 0; j < group; ++j) {
      std::vector<double> numerator(static_cast<size_t>(d), 0.0);
      double denominator = 0;
      const auto add = [&](const std::byte* row, double size) {
        double product = 0;
        for (int64_t i = 0; i < d; ++i) {
          product +=
              static_cast<double>(q[h][static_cast<size_t>(j * d + i)]) * RowValue(format, row, i);
        }
        const double weight = std::exp(product * static_cast<double>(scale));
        denominator += size * weight;
        for (int64_t i = 0; i < d; ++i) {
          numerator[static_cast<size_t>(i)] += weight * RowValue(format, row, d + i);
        }
      };
      for (int64_t r = 0; r < parts[h].count; ++r) add(blocks[h].rows().Row(r), 1);
      for (int64_t i = 0; i < estimates[h].count; ++i) {
        const int32_t c = work[h].ids[i];
        add(work[h].clusters.Row(c), work[h].clusters.Size(c));
      }
      for (double& x : numerator) x /= denominator;
      const auto got =
          std::span(outs[h]).subspan(static_cast<size_t>(j * d), static_cast<size_t>(d));
      ASSERT_LE(testing::RelativeError(got, numerator),
                encoding == RowEncoding::kBF16 ? 0.03 : 1e-4)
          << "head " << h;
    }
  }
}

// The best centroid of every point, and the means of the assigned points, on part of the channels.
TEST_P(Clusters, AssignedAndAveragedAsInDouble) {
  const auto& [threads, encoding, d, group] = GetParam();
  Random random;
  CpuDevice device(threads);
  const auto stream = device.CreateStream();
  const RowFormat format{encoding, d};
  for (const bool nearest : {false, true}) {
    const int64_t tokens = random.Integer(1, 500), clusters = random.Integer(1, 150);
    const int64_t channels = random.Integer(1, d), channel = random.Integer(0, d - channels);
    const int64_t begin = random.Integer(0, tokens - 1), count = tokens - begin;
    const auto n = static_cast<size_t>(channels);
    PagedBlock block(random, format, tokens, 11);
    for (int64_t t = 0; t < tokens; ++t) FillRow(random, format, block.rows().Row(t));
    std::vector<float> center(n), centroids(static_cast<size_t>(clusters) * n);
    std::vector<float> bias(static_cast<size_t>(clusters));
    for (float& x : center) x = random.Normal();
    for (float& x : centroids) x = random.Normal();
    for (size_t c = 0; c < bias.size(); ++c) {
      for (size_t i = 0; i < n; ++i) bias[c] -= centroids[c * n + i] * centroids[c * n + i] / 2;
    }
    std::vector<int32_t> assignment(static_cast<size_t>(count), -7), sizes(bias.size(), -7);
    const KeyPoints points{.rows = block.rows(),
                           .begin = begin,
                           .count = count,
                           .channel = channel,
                           .channels = channels,
                           .center = nearest ? nullptr : center.data()};
    const AssignWork assign{.points = points,
                            .centroids = centroids.data(),
                            .bias = nearest ? bias.data() : nullptr,
                            .clusters = clusters,
                            .first = 9,
                            .assignment = assignment.data()};
    AssignToCentroids(*stream, {&assign, 1});
    const auto value = [&](int64_t t, size_t i) {
      const double x =
          RowValue(format, block.rows().Row(begin + t), channel + static_cast<int64_t>(i));
      return nearest ? x : x - static_cast<double>(center[i]);
    };
    std::vector<double> sums(centroids.size(), 0.0);
    std::vector<int32_t> counts(bias.size(), 0);
    for (int64_t t = 0; t < count; ++t) {
      const auto score = [&](size_t c) {
        double sum = 0;
        for (size_t i = 0; i < n; ++i) {
          const double difference = value(t, i) - static_cast<double>(centroids[c * n + i]);
          sum += nearest ? -difference * difference
                         : value(t, i) * static_cast<double>(centroids[c * n + i]);
        }
        return sum;
      };
      const auto chosen = static_cast<size_t>(assignment[static_cast<size_t>(t)] - 9);
      ASSERT_LT(chosen, bias.size());
      for (size_t c = 0; c < bias.size(); ++c) ASSERT_GE(score(chosen), score(c) - 1e-4);
      ++counts[chosen];
      for (size_t i = 0; i < n; ++i) sums[chosen * n + i] += value(t, i);
    }
    const std::vector<float> before = centroids;
    const CentroidWork update{.points = points,
                              .assignment = assignment.data(),
                              .clusters = clusters,
                              .first = 9,
                              .normalize = !nearest,
                              .centroids = centroids.data(),
                              .sizes = sizes.data()};
    UpdateCentroids(*stream, {&update, 1});
    ASSERT_EQ(sizes, counts);
    for (size_t c = 0; c < bias.size(); ++c) {
      double length = 0;
      for (size_t i = 0; i < n; ++i) length += sums[c * n + i] * sums[c * n + i];
      length = nearest ? static_cast<double>(counts[c]) : std::sqrt(length);
      for (size_t i = 0; i < n; ++i) {
        const double expected =
            counts[c] == 0 ? static_cast<double>(before[c * n + i]) : sums[c * n + i] / length;
        ASSERT_NEAR(static_cast<double>(centroids[c * n + i]), expected, 1e-4);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Clusters,
                         ::testing::Values(Case{1, RowEncoding::kF32, 24, 3},
                                           Case{3, RowEncoding::kF32, 17, 1},
                                           Case{2, RowEncoding::kBF16, 64, 4},
                                           Case{4, RowEncoding::kBF16, 40, 21}));

}  // namespace
}  // namespace litecache::lab::ops
