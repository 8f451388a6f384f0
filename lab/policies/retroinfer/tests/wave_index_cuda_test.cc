#include "lab/policies/retroinfer/ops/wave_index_cuda.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "lab/policies/retroinfer/ops/force_clusters_cuda.h"
#include "ops/gpu_testing_cuda.h"
#include "ops/paged_lists_cuda.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

using Random = std::mt19937_64;

int32_t Uniform(Random& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

struct Case {
  RowEncoding encoding;
  int32_t head_dim, group;
  int32_t most_clusters;
  double scale_of_q = 1;
  int32_t alike = 1;  // number of consecutive clusters with the same centroid
};

// One layer of a few sequences, using lists 3 and later of a table.
class WaveIndex : public GpuTest, public ::testing::WithParamInterface<Case> {
 protected:
  static constexpr int32_t kHeads = 2, kLists = 6, kFirst = 3, kRowPage = 24;

  struct Sequence {
    int32_t past = 0, clusters = 0, ranked = 0, unranked = 0, buffer_blocks = 0, indexed_end = 0;
    int32_t cache_page = 0, buffer_page = 0, blocks = 0, cluster_stride = 0, block_stride = 0;
    std::unique_ptr<PagedLists> index, rows;
    std::vector<int32_t> begins, first, next;  // as on the device
    int32_t *device_first = nullptr, *device_next = nullptr;
  };

  void Build(Random& random, const Case& c) {
    format_ = {c.encoding, c.head_dim};
    shape_ = {.kv_heads = kHeads,
              .group = c.group,
              .head_dim = c.head_dim,
              .sink = 4,
              .ring = 70,
              .block_tokens = 5,
              .page_block_rows = kRowPage / 5 * 5};
    std::normal_distribution<float> normal;
    const auto count = 4;
    for (int32_t s = 0; s < count; ++s) {
      Sequence sequence;
      sequence.past = s == 0 ? 2 : Uniform(random, 60, testing::Tokens(5000));
      const bool indexed = s != 0 && s != 2;
      sequence.clusters = !indexed ? 0 : s == 1 ? c.most_clusters : Uniform(random, 1, 300);
      sequence.ranked = Uniform(random, 0, 40);
      sequence.unranked = s == 3 ? Uniform(random, 0, 3) : Uniform(random, 1, 200);
      sequence.buffer_blocks = s == 3 ? Uniform(random, 1, 30) : 150;
      sequence.indexed_end =
          s == 0 ? shape_.sink : sequence.past - Uniform(random, 0, shape_.ring - 1);
      sequence.cache_page = (shape_.sink + shape_.ring + kRowPage - 1) / kRowPage;
      sequence.blocks = 60;
      const int32_t cache_pages =
          (sequence.blocks * shape_.block_tokens + shape_.page_block_rows - 1) /
          shape_.page_block_rows;
      sequence.buffer_page = sequence.cache_page + cache_pages;
      const int32_t pages =
          sequence.buffer_page +
          (sequence.buffer_blocks * 5 + shape_.page_block_rows - 1) / shape_.page_block_rows;
      sequence.cluster_stride = sequence.clusters + 3;
      sequence.block_stride = sequence.blocks + 2;
      sequence.index = std::make_unique<PagedLists>(*gpu_, *gpu_, random, kLists,
                                                    std::max(sequence.clusters, 1), 29, format_, 4);
      sequence.rows = std::make_unique<PagedLists>(*gpu_, *gpu_, random, kLists, pages * kRowPage,
                                                   kRowPage, format_);
      const auto strided = static_cast<size_t>(kLists * sequence.cluster_stride);
      sequence.begins.assign(strided, -7);
      sequence.first.assign(strided, -1);
      sequence.next.assign(static_cast<size_t>(kLists * sequence.block_stride), -1);
      for (int32_t list = kFirst; list < kFirst + kHeads; ++list) {
        int32_t at = 4, block = 0;
        std::vector<int32_t> order(static_cast<size_t>(sequence.blocks));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (int32_t k = 0; k < sequence.clusters; ++k) {
          const int32_t same_as = k / c.alike * c.alike;
          for (int32_t i = 0; i < 2 * c.head_dim; ++i) {
            const float x = normal(random);
            const bool copied = same_as < k && i < c.head_dim;
            sequence.index->Set(
                list, k, i,
                copied ? static_cast<float>(sequence.index->Value(list, same_as, i)) : x);
          }
          int32_t size = random() % 5 == 0 ? 0 : Uniform(random, 1, 30);
          if (k == 0) size = 3;
          sequence.index->Behind(list, k) = size;
          const auto entry = static_cast<size_t>(list * sequence.cluster_stride + k);
          sequence.begins[entry] = at;
          at += size;
          const int32_t blocks = (size + 4) / 5;
          if (random() % 3 == 0 && size > 0 && block + blocks <= sequence.blocks) {  // cached
            int32_t* link = &sequence.first[entry];
            for (int32_t b = 0; b < blocks; ++b) {
              *link = order[static_cast<size_t>(block++)];
              link = &sequence.next[static_cast<size_t>(list * sequence.block_stride + *link)];
            }
          }
        }
        for (int32_t row = 0; row < pages * kRowPage; ++row) {
          for (int32_t i = 0; i < 2 * c.head_dim; ++i)
            sequence.rows->Set(list, row, i, normal(random));
        }
      }
      sequence.index->Push();
      sequence.rows->Push();
      shape_.max_clusters = std::max(shape_.max_clusters, sequence.clusters);
      shape_.max_ranked = std::max(shape_.max_ranked, sequence.ranked);
      shape_.max_chosen = std::max(shape_.max_chosen, sequence.ranked + sequence.unranked);
      shape_.max_rows = std::max(shape_.max_rows, shape_.ring + sequence.buffer_blocks * 5);
      sequences_.push_back(std::move(sequence));
    }
    std::vector<StepSequence> views(count + 1);
    std::vector<WaveSequence> waves(count + 1);
    for (int32_t s = 0; s < count; ++s) {
      Sequence& of = sequences_[static_cast<size_t>(s)];
      StepSequence& view = views[static_cast<size_t>(s)];
      view = {.first_row = s + 1, .rows = 1, .past = of.past, .stored = of.past};
      view.pages[kMetadata] = of.index->device();
      view.pages[kSlots] = of.rows->device();
      of.device_first = Upload(of.first);
      of.device_next = Upload(of.next);
      waves[static_cast<size_t>(s)] = {.clusters = of.clusters,
                                       .ranked = of.ranked,
                                       .unranked = of.unranked,
                                       .buffer_blocks = of.buffer_blocks,
                                       .indexed_end = of.indexed_end,
                                       .cache_page = of.cache_page,
                                       .buffer_page = of.buffer_page,
                                       .cluster_stride = of.cluster_stride,
                                       .block_stride = of.block_stride,
                                       .begins = Upload(of.begins),
                                       .first_block = of.device_first,
                                       .next_block = of.device_next};
    }
    step_ = {.sequences = Upload(views),
             .count = Upload(std::vector<int32_t>{count}),
             .capacity = count + 1,
             .max_rows = 1,
             .max_context = 5001};
    const auto pairs = static_cast<size_t>((count + 1) * kHeads);
    const auto of = [&](int32_t items) { return pairs * static_cast<size_t>(items); };
    const auto* heads = Upload(std::vector<int32_t>{kFirst, kFirst + 1});
    layer_.sequences = Upload(waves);
    layer_.index = {kMetadata, kLists, 29, format_, 0, 0, heads};
    layer_.rows = {kSlots, kLists, kRowPage, format_, 0, 0, heads};
    layer_.logits = Poisoned<float>(of(c.group * shape_.max_clusters));
    layer_.ids = Poisoned<int32_t>(of(shape_.max_chosen));
    layer_.choices = Poisoned<WaveChoice>(pairs);
    layer_.told_choices = Poisoned<WaveChoice>(pairs);
    layer_.told_ids = Poisoned<int32_t>(of(shape_.max_chosen));
    layer_.leading = Poisoned<int32_t>(pairs);
    layer_.listed = Poisoned<int32_t>(of(shape_.max_rows));
    layer_.listed_count = Poisoned<int32_t>(pairs);
    layer_.fetched_sources = Poisoned<int32_t>(of(shape_.max_rows));
    layer_.fetched_targets = Poisoned<int32_t>(of(shape_.max_rows));
    layer_.fetched_count = Poisoned<int32_t>(pairs);
    layer_.states = Poisoned<float>(of(kEstimateParts * c.group * (c.head_dim + 2)));
    q_.resize(static_cast<size_t>((count + 1) * kHeads * c.group * c.head_dim));
    for (float& x : q_) x = static_cast<float>(c.scale_of_q) * normal(random);
    scale_ = 1 / std::sqrt(static_cast<float>(c.head_dim));
    const auto columns = int64_t{kHeads} * c.group * c.head_dim;
    SelectClusters(*stream_, step_, shape_, layer_, MatrixView::Of(Upload(q_), count + 1, columns),
                   scale_, Poisoned<std::byte>(SelectClustersScratchBytes(shape_, count + 1)));
    choices_ = Download(layer_.choices, pairs);
    ids_ = Download(layer_.ids, of(shape_.max_chosen));
  }

  // scale * q . centroid, for the natural exponential.
  double Logit(int32_t s, int32_t head, int32_t j, int32_t cluster) {
    double sum = 0;
    for (int32_t i = 0; i < shape_.head_dim; ++i) {
      sum += static_cast<double>(q_[static_cast<size_t>(
                 (((s + 1) * kHeads + head) * shape_.group + j) * shape_.head_dim + i)]) *
             sequences_[static_cast<size_t>(s)].index->Value(kFirst + head, cluster, i);
    }
    return sum * static_cast<double>(scale_);
  }
  int32_t Size(int32_t s, int32_t head, int32_t cluster) {
    return sequences_[static_cast<size_t>(s)].index->Behind(kFirst + head, cluster);
  }
  const int32_t* Ids(int32_t pair) const {
    return ids_.data() + static_cast<ptrdiff_t>(pair) * shape_.max_chosen;
  }
  int32_t BlockRow(int32_t page, int32_t slot) const {
    return (page + slot / shape_.page_block_rows) * kRowPage + slot % shape_.page_block_rows;
  }

  RowFormat format_;
  WaveShape shape_;
  WaveLayer layer_;
  StepView step_;
  std::vector<Sequence> sequences_;
  std::vector<float> q_;
  float scale_ = 0;
  std::vector<WaveChoice> choices_;
  std::vector<int32_t> ids_;
};

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
  const Case c = GetParam();
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

TEST_P(WaveIndex, AdmittedRowsAndTables) {
  auto random = testing::TestRandom(3);
  Build(random, GetParam());
  std::vector<int32_t> begins = {0}, links_begin, links;
  std::vector<WaveAdmission> items;
  struct Move {
    int32_t list, from, to;
  };
  std::vector<std::vector<Move>> moves(4);
  for (int32_t pair = 0; pair < 5 * kHeads; ++pair) {
    const int32_t s = pair / kHeads, list = kFirst + pair % kHeads;
    if (s < 4 && sequences_[static_cast<size_t>(s)].clusters > 0) {
      Sequence& of = sequences_[static_cast<size_t>(s)];
      // All cached clusters are evicted; others are admitted, into arbitrary blocks.
      std::vector<int32_t> out, in;
      for (int32_t c = 0; c < of.clusters; ++c) {
        const auto entry = static_cast<size_t>(list * of.cluster_stride + c);
        if (of.first[entry] >= 0) {
          items.push_back({.cluster = c});
          links_begin.push_back(0);
          of.first[entry] = -1;
        } else if (Size(s, pair % kHeads, c) > 0 && in.size() < 9) {
          in.push_back(c);
        }
      }
      std::vector<int32_t> order(static_cast<size_t>(of.blocks));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      size_t block = 0;
      int32_t source = 0;
      for (const int32_t c : in) {
        const int32_t rows = Size(s, pair % kHeads, c), blocks = (rows + 4) / 5;
        if (source + blocks > of.buffer_blocks) break;
        links_begin.push_back(static_cast<int32_t>(links.size()));
        int32_t* link = &of.first[static_cast<size_t>(list * of.cluster_stride + c)];
        for (int32_t b = 0; b < blocks; ++b) {
          *link = order[block++];
          links.push_back(*link);
          link = &of.next[static_cast<size_t>(list * of.block_stride + *link)];
        }
        *link = -1;
        items.push_back({c, links[static_cast<size_t>(links_begin.back())], source, rows});
        for (int32_t r = 0; r < rows; ++r) {
          const auto at = static_cast<size_t>(links_begin.back() + r / 5);
          moves[static_cast<size_t>(s)].push_back({list, BlockRow(of.buffer_page, source * 5 + r),
                                                   BlockRow(of.cache_page, links[at] * 5 + r % 5)});
        }
        source += blocks;
      }
    }
    begins.push_back(static_cast<int32_t>(items.size()));
  }
  begins.push_back(static_cast<int32_t>(links.size()));
  items.push_back({});
  links_begin.push_back(0);
  links.push_back(0);
  layer_.admissions = {Upload(begins), Upload(items), Upload(links_begin), Upload(links)};
  layer_.received = {Poisoned<int32_t>(begins.size()), Poisoned<WaveAdmission>(items.size()),
                     Poisoned<int32_t>(links_begin.size()), Poisoned<int32_t>(links.size())};
  const Buffer mapped = PinnedHost(*gpu_).Allocate(sizeof(WaveMailbox));
  layer_.mailbox = new (mapped.data()) WaveMailbox();
  layer_.first_number = Upload(std::vector<uint64_t>{70});
  layer_.number = 3;
  layer_.answered = Poisoned<int32_t>(1);
  layer_.mailbox->admitted = 74;
  AdmitClusters(*stream_, step_, shape_, layer_, 1000 * 1000);
  stream_->Synchronize();
  for (size_t s = 0; s < 4; ++s) {
    Sequence& of = sequences_[s];
    EXPECT_EQ(Download(of.device_first, of.first.size()), of.first) << "sequence " << s;
    EXPECT_EQ(Download(of.device_next, of.next.size()), of.next) << "sequence " << s;
    for (const Move& move : moves[s]) {
      std::copy_n(of.rows->Row(move.list, move.from), format_.row_bytes(),
                  of.rows->Row(move.list, move.to));
    }
    std::vector<std::byte> want;
    for (int32_t list = kFirst; list < kFirst + kHeads; ++list) {
      for (const Move& move : moves[s]) {
        if (move.list != list) continue;
        want.insert(want.end(), of.rows->Row(list, move.to),
                    of.rows->Row(list, move.to) + format_.row_bytes());
      }
    }
    of.rows->Pull();
    std::vector<std::byte> got;
    for (int32_t list = kFirst; list < kFirst + kHeads; ++list) {
      for (const Move& move : moves[s]) {
        if (move.list != list) continue;
        got.insert(got.end(), of.rows->Row(list, move.to),
                   of.rows->Row(list, move.to) + format_.row_bytes());
      }
    }
    EXPECT_TRUE(got == want) << "sequence " << s;
  }
  EXPECT_EQ(layer_.mailbox->fault, 0u);
  // An answer that never arrives; the next one is not waited for.
  layer_.number = 4;
  for (int i = 0; i < 2; ++i) AdmitClusters(*stream_, step_, shape_, layer_, 1000 * 1000);
  stream_->Synchronize();
  EXPECT_EQ(layer_.mailbox->fault, 75u);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(Download(sequences_[s].device_first, sequences_[s].first.size()),
              sequences_[s].first);
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

INSTANTIATE_TEST_SUITE_P(
    All, WaveIndex,
    ::testing::Values(Case{RowEncoding::kBF16, 128, 4, 2600},
                      Case{RowEncoding::kBF16, 64, 1, 700, 4}, Case{RowEncoding::kBF16, 96, 7, 333},
                      Case{RowEncoding::kBF16, 64, 12, 1001}, Case{RowEncoding::kF32, 24, 3, 500},
                      Case{RowEncoding::kF32, 17, 2, 90}, Case{RowEncoding::kBF16, 40, 4, 400},
                      Case{RowEncoding::kBF16, 256, 5, 200},
                      Case{RowEncoding::kBF16, 128, 4, 3000, 1, 50},
                      Case{RowEncoding::kF32, 40, 2, 600, 1, 7}));

}  // namespace
}  // namespace litecache::ops::cuda
