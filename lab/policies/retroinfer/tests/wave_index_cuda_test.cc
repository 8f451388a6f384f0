// Clusters selected, their rows, and the estimate of the others.
#include "lab/policies/retroinfer/tests/wave_index_cuda.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "lab/policies/retroinfer/ops/force_clusters_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

TEST_P(WaveIndex, ChosenAsInDouble) {
  auto random = testing::TestRandom();
  Build(random, GetParam());
  const int32_t alike = GetParam().alike;
  const auto told = Download(layer_.told_choices, choices_.size());
  const auto told_ids =
      Download(layer_.told_ids, choices_.size() * static_cast<size_t>(shape_.max_chosen));
  for (int32_t pair = 0; pair < static_cast<int32_t>(choices_.size()); ++pair) {
    const WaveChoice choice = choices_[static_cast<size_t>(pair)];
    const WaveChoice& of_host = told[static_cast<size_t>(pair)];
    ASSERT_EQ(of_host.count, choice.count);
    ASSERT_EQ(of_host.retrieved, choice.retrieved);
    const int32_t s = pair / kHeads, head = pair % kHeads;
    if (s >= 4 || sequences_[static_cast<size_t>(s)].clusters == 0) {
      ASSERT_EQ(choice.count, 0) << "pair " << pair;
      continue;
    }
    const Sequence& sequence = sequences_[static_cast<size_t>(s)];
    std::vector<double> scores(static_cast<size_t>(sequence.clusters));
    int32_t filled = 0;
    for (int32_t c = 0; c < sequence.clusters; ++c) filled += Size(s, head, c) > 0;
    for (int32_t j = 0; j < shape_.group; ++j) {
      double maximum = -HUGE_VAL, total = 0;
      std::vector<double> x;
      for (int32_t c = 0; c < sequence.clusters; ++c) {
        x.push_back(Size(s, head, c) > 0 ? Logit(s, head, j, c) : -HUGE_VAL);
        maximum = std::max(maximum, x.back());
      }
      for (const double y : x) total += std::exp(y - maximum);
      for (size_t c = 0; c < x.size(); ++c) scores[c] += std::exp(x[c] - maximum) / total;
    }
    ASSERT_EQ(choice.ranked, std::min(sequence.ranked, filled));
    ASSERT_EQ(choice.count, std::min(sequence.ranked + sequence.unranked, filled));
    std::set<int32_t> chosen;
    int32_t blocks = 0, retrieved = 0;
    double least = HUGE_VAL;
    bool fits = true;
    for (int32_t i = 0; i < choice.count; ++i) {
      const int32_t c = Ids(pair)[i];
      ASSERT_TRUE(c >= 0 && c < sequence.clusters) << "pair " << pair << " id " << i << " is " << c;
      ASSERT_GT(Size(s, head, c), 0);
      ASSERT_TRUE(chosen.insert(c).second) << "pair " << pair << ": " << c << " twice";
      const double score = scores[static_cast<size_t>(c)];
      if (i > 0 && i < choice.ranked) {
        const double before = scores[static_cast<size_t>(Ids(pair)[i - 1])];
        ASSERT_LE(score, before * 1.001 + 1e-9) << "pair " << pair << " rank " << i;
      }
      if (i >= choice.ranked) {
        ASSERT_LE(score, least * 1.001 + 1e-9);
        if (i > choice.ranked) {
          ASSERT_GT(c, Ids(pair)[i - 1]);
        }
      } else {
        least = std::min(least, score);
        blocks += (Size(s, head, c) + 4) / 5;
        fits = fits && blocks <= sequence.buffer_blocks;
        retrieved += fits;
        // Ties go to the first.
        for (int32_t other = c / alike * alike; other < c; ++other) {
          ASSERT_TRUE(chosen.contains(other) || Size(s, head, other) == 0)
              << "pair " << pair << ": " << c << " before " << other;
        }
        if (i < choice.retrieved) {
          ASSERT_EQ(told_ids[static_cast<size_t>(pair * shape_.max_chosen + i)], c);
        }
      }
    }
    ASSERT_EQ(choice.retrieved, retrieved) << "pair " << pair;
    for (const int32_t c : chosen) {
      least = std::min(least, scores[static_cast<size_t>(c)]);
      for (int32_t other = c / alike * alike; other < c; ++other) {
        ASSERT_TRUE(chosen.contains(other) || Size(s, head, other) == 0)
            << "pair " << pair << ": " << c << " instead of " << other;
      }
    }
    for (int32_t c = 0; c < sequence.clusters; ++c) {
      if (chosen.contains(c) || Size(s, head, c) == 0) continue;
      ASSERT_LE(scores[static_cast<size_t>(c)], least * 1.001 + 1e-9) << "pair " << pair;
    }
  }
}

TEST_P(WaveIndex, RowsOfChosenClusters) {
  auto random = testing::TestRandom(1);
  Build(random, GetParam());
  ListWaveRows(*stream_, step_, shape_, layer_);
  const auto all = choices_.size() * static_cast<size_t>(shape_.max_rows);
  const auto leading = Download(layer_.leading, choices_.size());
  const auto counts = Download(layer_.listed_count, choices_.size());
  const auto fetched = Download(layer_.fetched_count, choices_.size());
  const auto listed = Download(layer_.listed, all);
  const auto sources = Download(layer_.fetched_sources, all);
  const auto targets = Download(layer_.fetched_targets, all);
  for (int32_t pair = 0; pair < 5 * kHeads; ++pair) {
    const int32_t s = pair / kHeads, head = pair % kHeads;
    std::vector<int32_t> want, want_sources, want_targets;
    int32_t first = 0;
    if (s < 4) {
      const Sequence& of = sequences_[static_cast<size_t>(s)];
      first = std::min(of.past + 1, shape_.sink);
      for (int32_t t = of.indexed_end; t <= of.past; ++t) {
        want.push_back(shape_.sink + t % shape_.ring);
      }
      int32_t next = 0;
      for (int32_t i = 0; i < choices_[static_cast<size_t>(pair)].retrieved; ++i) {
        const int32_t c = Ids(pair)[i], size = Size(s, head, c);
        const auto entry = static_cast<size_t>((kFirst + head) * of.cluster_stride + c);
        int32_t block = of.first[entry];
        const bool hit = block >= 0;
        for (int32_t r = 0; r < size; ++r) {
          if (hit) {
            want.push_back(BlockRow(of.cache_page, block * 5 + r % 5));
            if (r % 5 == 4) {
              block = of.next[static_cast<size_t>((kFirst + head) * of.block_stride + block)];
            }
          } else {
            want.push_back(BlockRow(of.buffer_page, next * 5 + r));
            want_targets.push_back(want.back());
            want_sources.push_back(of.begins[entry] + r);
          }
        }
        if (!hit) next += (size + 4) / 5;
      }
    }
    const auto got = [&](const std::vector<int32_t>& from, int32_t count) {
      const auto begin = from.begin() + static_cast<ptrdiff_t>(pair) * shape_.max_rows;
      return std::vector<int32_t>(begin, begin + count);
    };
    ASSERT_EQ(leading[static_cast<size_t>(pair)], first);
    ASSERT_EQ(got(listed, counts[static_cast<size_t>(pair)]), want) << "pair " << pair;
    ASSERT_EQ(got(sources, fetched[static_cast<size_t>(pair)]), want_sources) << "pair " << pair;
    ASSERT_EQ(got(targets, fetched[static_cast<size_t>(pair)]), want_targets) << "pair " << pair;
  }
}

TEST_P(WaveIndex, EstimateMergesWithExactRows) {
  auto random = testing::TestRandom(2);
  const WaveCase c = GetParam();
  Build(random, c);
  EstimateClusters(*stream_, step_, shape_, layer_);
  std::normal_distribution<float> normal;
  const int32_t q_heads = kHeads * c.group;
  std::vector<float> exact(static_cast<size_t>(5 * q_heads * c.head_dim));
  std::vector<float> log_sums(static_cast<size_t>(5 * q_heads));
  for (float& x : exact) x = normal(random);
  for (float& x : log_sums) x = 3 + 2 * normal(random);
  for (const bool bf16_out : {false, true}) {
    std::vector<bf16> narrow;
    for (const float x : exact) narrow.push_back(bf16(x));
    void* out = bf16_out ? static_cast<void*>(Upload(narrow)) : Upload(exact);
    MergeEstimate(*stream_, step_, shape_, layer_, Upload(log_sums),
                  MatrixView::Of(out, bf16_out ? DType::kBF16 : DType::kF32, 5,
                                 int64_t{q_heads} * c.head_dim));
    std::vector<float> got(exact.size());
    if (bf16_out) {
      const auto values = Download(static_cast<bf16*>(out), exact.size());
      for (size_t i = 0; i < values.size(); ++i) got[i] = static_cast<float>(values[i]);
    } else {
      got = Download(static_cast<float*>(out), exact.size());
    }
    for (int32_t s = -1; s < 4; ++s) {
      for (int32_t query = 0; query < q_heads; ++query) {
        const int32_t head = query / c.group, pair = std::max(s, 0) * kHeads + head;
        const auto row = static_cast<size_t>((s + 1) * q_heads + query);
        const WaveChoice choice = s < 0 ? WaveChoice{} : choices_[static_cast<size_t>(pair)];
        const auto lse = static_cast<double>(log_sums[row]);
        double maximum = lse;
        for (int32_t i = choice.retrieved; i < choice.count; ++i) {
          maximum = std::max(maximum, Logit(s, head, query % c.group, Ids(pair)[i]));
        }
        std::vector<double> sum(static_cast<size_t>(c.head_dim));
        double total = std::exp(lse - maximum);
        for (int32_t e = 0; e < c.head_dim; ++e) {
          const float of = exact[row * static_cast<size_t>(c.head_dim) + static_cast<size_t>(e)];
          sum[static_cast<size_t>(e)] =
              total * static_cast<double>(bf16_out ? static_cast<float>(bf16(of)) : of);
        }
        for (int32_t i = choice.retrieved; i < choice.count; ++i) {
          const int32_t id = Ids(pair)[i];
          const double weight = std::exp(Logit(s, head, query % c.group, id) - maximum);
          total += weight * Size(s, head, id);
          for (int32_t e = 0; e < c.head_dim; ++e) {
            sum[static_cast<size_t>(e)] += weight * sequences_[static_cast<size_t>(s)].index->Value(
                                                        kFirst + head, id, c.head_dim + e);
          }
        }
        for (int32_t e = 0; e < c.head_dim; ++e) {
          const double want = sum[static_cast<size_t>(e)] / total;
          const double value = static_cast<double>(
              got[row * static_cast<size_t>(c.head_dim) + static_cast<size_t>(e)]);
          ASSERT_NEAR(value, want, (bf16_out ? 0.005 : 3e-4) * (1 + std::abs(want)))
              << "sequence " << s << " query head " << query << " channel " << e;
        }
      }
    }
  }
}

TEST_P(WaveIndex, ForcedClusters) {
  auto random = testing::TestRandom(4);
  Build(random, GetParam());
  const int32_t recorded = Uniform(random, 1, 1500), steps = Uniform(random, 1, 5);
  const int32_t stride = kHeads * recorded + Uniform(random, 0, 9);
  std::vector<uint16_t> order(static_cast<size_t>(steps * stride), 0xCDCD);
  for (int32_t t = 0; t < steps; ++t) {
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto begin = order.begin() + t * stride + head * recorded;
      std::iota(begin, begin + recorded, uint16_t{0});
      std::shuffle(begin, begin + recorded, random);
    }
  }
  for (const bool tell_all : {false, true}) {
    shape_.tell_all = tell_all;
    layer_.told_ids = Poisoned<int32_t>(ids_.size());
    ForceClusters(*stream_, step_, shape_, layer_,
                  {.order = Upload(order), .recorded = recorded, .steps = steps, .stride = stride});
    const auto choices = Download(layer_.choices, choices_.size());
    const auto told = Download(layer_.told_choices, choices_.size());
    const auto ids = Download(layer_.ids, ids_.size());
    const auto told_ids = Download(layer_.told_ids, ids_.size());
    for (int32_t pair = 0; pair < 5 * kHeads; ++pair) {
      SCOPED_TRACE("pair " + std::to_string(pair));
      const int32_t s = pair / kHeads, head = pair % kHeads;
      const auto p = static_cast<size_t>(pair);
      ASSERT_EQ(choices[p].count, choices_[p].count);
      ASSERT_EQ(choices[p].ranked, choices_[p].ranked);
      ASSERT_EQ(told[p].retrieved, choices[p].retrieved);
      if (choices[p].count == 0) continue;
      const Sequence& of = sequences_[static_cast<size_t>(s)];
      const auto t = (int64_t{of.past} + int64_t{s + 1} * 37) % steps;
      // Cluster c takes the place of the recorded one in which its share of all clusters begins.
      std::vector<int32_t> place(static_cast<size_t>(recorded)), want;
      for (int32_t i = 0; i < recorded; ++i) {
        place[order[static_cast<size_t>(t * stride + head * recorded + i)]] = i;
      }
      std::vector<std::pair<int32_t, int32_t>> all;
      for (int32_t c = 0; c < of.clusters; ++c) {
        const auto recorded_as = static_cast<size_t>(int64_t{c} * recorded / of.clusters);
        if (Size(s, head, c) > 0) all.emplace_back(place[recorded_as], c);
      }
      std::sort(all.begin(), all.end());
      for (int32_t i = 0; i < choices[p].count; ++i) {
        want.push_back(all[static_cast<size_t>(i)].second);
      }
      std::sort(want.begin() + choices[p].ranked, want.end());
      const auto* got = ids.data() + static_cast<ptrdiff_t>(pair) * shape_.max_chosen;
      ASSERT_EQ(std::vector<int32_t>(got, got + choices[p].count), want);
      int32_t retrieved = 0, blocks = 0;
      for (; retrieved < choices[p].ranked; ++retrieved) {
        blocks += (Size(s, head, want[static_cast<size_t>(retrieved)]) + 4) / 5;
        if (blocks > of.buffer_blocks) break;
      }
      ASSERT_EQ(choices[p].retrieved, retrieved);
      const auto* heard = told_ids.data() + static_cast<ptrdiff_t>(pair) * shape_.max_chosen;
      want.resize(static_cast<size_t>(tell_all ? choices[p].count : retrieved));
      ASSERT_EQ(std::vector<int32_t>(heard, heard + want.size()), want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WaveIndex, WaveCases());

}  // namespace
}  // namespace litecache::lab::ops::cuda
