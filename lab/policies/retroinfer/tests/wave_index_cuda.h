// One layer of a few sequences with clusters, cached blocks and rows, for tests of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "ops/gpu_testing_cuda.h"
#include "ops/paged_lists_cuda.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::lab::ops::cuda {

using Random = std::mt19937_64;

inline int32_t Uniform(Random& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

struct WaveCase {
  RowEncoding encoding;
  int32_t head_dim, group;
  int32_t most_clusters;
  double scale_of_q = 1;
  int32_t alike = 1;  // number of consecutive clusters with the same centroid
};

// Uses lists 3 and later of a table.
class WaveIndex : public GpuTest, public ::testing::WithParamInterface<WaveCase> {
 protected:
  static constexpr int32_t kHeads = 2, kLists = 6, kFirst = 3, kRowPage = 24;

  struct Sequence {
    int32_t past = 0, clusters = 0, ranked = 0, unranked = 0, buffer_blocks = 0, indexed_end = 0;
    int32_t cache_page = 0, buffer_page = 0, blocks = 0, cluster_stride = 0, block_stride = 0;
    std::unique_ptr<PagedLists> index, rows;
    std::vector<int32_t> begins, first, next;  // as on the device
    int32_t *device_first = nullptr, *device_next = nullptr;
  };

  void Build(Random& random, const WaveCase& c) {
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

inline auto WaveCases() {
  return ::testing::Values(
      WaveCase{RowEncoding::kBF16, 128, 4, 2600}, WaveCase{RowEncoding::kBF16, 64, 1, 700, 4},
      WaveCase{RowEncoding::kBF16, 96, 7, 333}, WaveCase{RowEncoding::kBF16, 64, 12, 1001},
      WaveCase{RowEncoding::kF32, 24, 3, 500}, WaveCase{RowEncoding::kF32, 17, 2, 90},
      WaveCase{RowEncoding::kBF16, 40, 4, 400}, WaveCase{RowEncoding::kBF16, 256, 5, 200},
      WaveCase{RowEncoding::kBF16, 128, 4, 3000, 1, 50},
      WaveCase{RowEncoding::kF32, 40, 2, 600, 1, 7});
}

}  // namespace litecache::lab::ops::cuda
