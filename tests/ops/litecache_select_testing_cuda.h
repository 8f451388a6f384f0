// Shared by the tests of the retrievers' selections: random shapes and queries, keys of prompts,
// and comparisons with the permitted selections.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/litecache_testing_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/hash_select.h"
#include "ops/select/need.h"
#include "ops/select/selection.h"

namespace litecache::ops::cuda {

// Scores come from softmax over products of `head_dim` numbers near 1: the exponents have errors of
// a few head_dim * 2^-24 of their terms' sizes, and the scores the same relative error.
inline constexpr double kSoftmaxTolerance = 2e-4;

class LiteCacheSelectTest : public LiteCacheTest {
 protected:
  LiteCacheCase RandomCase(Random& random, int round) {
    LiteCacheCase c;
    c.kv_heads = Uniform(random, 1, 4);
    c.group = 1 << round % 4;
    c.head_dim = round % 2 == 0 ? 64 : 128;
    c.sink = Uniform(random, 0, 5);
    c.recent = Uniform(random, 1, 70);
    if (round % 3 == 0) {
      c.tokens = Uniform(random, 1, 300);
    } else {
      c.share = round % 3 == 1 ? 0.1 : 0.031;
    }
    for (int i = testing::Sequences(Uniform(random, 1, 6)); i > 0; --i) {
      c.past.push_back(Uniform(random, 0, 2) == 0 ? Uniform(random, 1, 120)
                                                  : testing::Tokens(Uniform(random, 500, 6000)));
    }
    if (c.kv_heads > 1) c.resident = {1};
    if (c.kv_heads > 3) {
      c.resident.push_back(3);
      c.dense = {3};
    }
    return c;
  }

  // Of scores, in some rounds: 0 is none. Scores are a few units, of which it leaves one and a
  // half, so that a group's heads have other shares than without it.
  static float CapIn(int round) { return round % 5 >= 3 ? 1.5f : 0.0f; }

  std::vector<float> RandomQueries(Random& random, bool whole) {
    std::normal_distribution<float> normal;
    std::vector<float> q(static_cast<size_t>((sequences() + 1) * query_cols()));
    for (float& x : q) x = whole ? std::round(4 * normal(random)) : normal(random);
    return q;
  }

  // Refreshes all offloaded heads except some.
  std::vector<int32_t> RandomRefresh(Random& random) {
    std::vector<int32_t> refresh(PairOf(sequences() + 1, 0));
    for (int32_t& r : refresh) r = Uniform(random, 0, 4) > 0;
    gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
    return refresh;
  }

  // Calls check(sequence, head, selection) for every required selection; the others must have count
  // 0.
  template <class Check>
  void ForEachSelection(const std::vector<int32_t>& refresh, bool fill, const Check& check) {
    for (int32_t s = 0; s < sequences(); ++s) {
      const int32_t n = views_[static_cast<size_t>(s)].past + (fill ? 0 : 1);
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        const auto i = static_cast<size_t>(h);
        const bool selects = IsOffloaded(h)
                                 ? refresh[PairOf(s, h)] == 1 && shape_.windows.Candidates(n) > 0
                                 : !fill && metadata_[i] >= 0 && !shape_.windows.AllFit(n);
        const std::vector<int32_t> got = Selected(s, h);
        const std::string where =
            case_.Name() + ", sequence " + std::to_string(s) + ", head " + std::to_string(h);
        if (!selects) {
          ASSERT_TRUE(got.empty()) << where;
          continue;
        }
        std::vector<int32_t> positions(static_cast<size_t>(shape_.windows.Candidates(n)));
        std::vector<float> scores(positions.size());
        check(where, s, h, got,
              Selection{.begin = shape_.windows.SinkRows(n),
                        .end = shape_.windows.RecentBegin(n),
                        .k = shape_.windows.Rows(n),
                        .fewest = shape_.windows.FewestRows(shape_.windows.Rows(n)),
                        .positions = positions.data(),
                        .scores = scores.data()});
        if (HasFatalFailure()) return;
      }
    }
  }

  // The k best, or those of them that are needed, by scores with a relative error of up to
  // `tolerance`.
  void ExpectTop(const std::string& where, const std::vector<int32_t>& got, const Selection& s,
                 double tolerance) {
    const auto rows = static_cast<int64_t>(got.size()), candidates = s.end - s.begin;
    if (s.fewest > 0 && s.k < candidates) {
      const double needed = NeededScore(shape_.group, candidates);
      const auto reaching = [&](double least) {
        return std::clamp<int64_t>(
            std::count_if(s.scores, s.scores + candidates, [&](float x) { return x >= least; }),
            s.fewest, s.k);
      };
      ASSERT_GE(rows, reaching(needed * (1 + tolerance))) << where;
      ASSERT_LE(rows, reaching(needed * (1 - tolerance))) << where;
    } else {
      ASSERT_EQ(rows, s.count) << where;
    }
    std::set<int32_t> taken(got.begin(), got.end());
    ASSERT_EQ(taken.size(), got.size()) << where;
    ASSERT_TRUE(std::is_sorted(got.begin(), got.end())) << where;
    ASSERT_GE(got.front(), s.begin) << where;
    ASSERT_LT(got.back(), s.end) << where;
    double worst = INFINITY, best = -INFINITY;
    for (int64_t t = s.begin; t < s.end; ++t) {
      const double score = static_cast<double>(s.scores[t - s.begin]);
      if (taken.count(static_cast<int32_t>(t)) != 0) {
        worst = std::min(worst, score);
      } else {
        best = std::max(best, score);
      }
    }
    ASSERT_GE(worst, best - tolerance * std::abs(best)) << where << ": worst taken, best left";
  }

  // New keys at positions [begin, past + 1) of all sequences, in two chunks if `begin` is not 0;
  // encode(keys) is called for each chunk with the step as a prompt's. Returns all keys, [sequence]
  // of [past + 1][kv_heads * head_dim].
  template <class Value, class Encode>
  std::vector<std::vector<float>> EncodePrompt(const Value& value, const Encode& encode) {
    const std::vector<StepSequence> decode = views_;
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.head_dim;
    std::vector<std::vector<float>> all;
    for (const StepSequence& view : decode) {
      all.emplace_back(static_cast<size_t>((view.past + 1) * cols));
      for (float& x : all.back()) x = value();
    }
    for (int chunk = 0; chunk < 2; ++chunk) {
      int32_t rows = 1;
      step_.max_rows = 1;
      std::vector<float> k(static_cast<size_t>(cols));
      for (int32_t s = 0; s < sequences(); ++s) {
        StepSequence& view = views_[static_cast<size_t>(s)];
        const int32_t n = decode[static_cast<size_t>(s)].past + 1, cut = n * 5 / 8;
        view.past = chunk == 0 ? 0 : cut;
        view.rows = chunk == 0 ? cut : n - cut;
        view.first_row = rows;
        rows += view.rows;
        step_.max_rows = std::max(step_.max_rows, view.rows);
        const auto first = all[static_cast<size_t>(s)].begin() + view.past * cols;
        k.insert(k.end(), first, first + view.rows * cols);
      }
      PushViews();
      encode(MatrixView::Of(Upload(k), rows, cols));
      stream_->Synchronize();
    }
    views_ = decode;
    PushViews();
    step_.max_rows = 1;
    return all;
  }

  // Compares the device's metadata with that made by twin(keys, head, metadata), byte for byte.
  template <class Twin>
  void CheckMetadata(const std::vector<std::vector<float>>& keys, const Twin& twin) {
    for (int32_t s = 0; s < sequences(); ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      const std::vector<std::byte> got = (Pull(pages), pages.mirror);
      std::fill(pages.mirror.begin(), pages.mirror.end(), std::byte{0xCD});
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        if (metadata_[static_cast<size_t>(h)] < 0) continue;
        const std::vector<std::byte*> host = pages.HostList(metadata_[static_cast<size_t>(h)]);
        twin(keys[static_cast<size_t>(s)], h,
             PagedMetadata{host.data(), case_.metadata_page_tokens});
      }
      const auto [a, b] = std::mismatch(got.begin(), got.end(), pages.mirror.begin());
      ASSERT_EQ(a, got.end()) << case_.Name() << ", sequence " << s << ", byte " << a - got.begin()
                              << " of " << got.size() << ": " << static_cast<int>(*a) << ", want "
                              << static_cast<int>(*b);
    }
  }

  // Codes of prompts of small whole numbers, for which all sums are exact: they must equal the
  // CPU's.
  void EncodeCodes(Random& random, const HashFormat& format, const std::vector<float>& weights,
                   const float* device_weights) {
    const auto keys =
        EncodePrompt([&] { return static_cast<float>(Uniform(random, -5, 5)); },
                     [&](const MatrixView& k) {
                       HashEncode(*stream_, step_, shape_, layer_, format, device_weights, &k);
                     });
    const int64_t d = shape_.head_dim, cols = shape_.kv_heads * d;
    CheckMetadata(
        keys, [&](const std::vector<float>& of_sequence, int32_t h, const PagedMetadata& metadata) {
          const HashEncodeWork work{.keys = of_sequence.data() + h * d,
                                    .key_stride = cols,
                                    .begin = 0,
                                    .count = static_cast<int64_t>(of_sequence.size()) / cols,
                                    .weight = weights.data() + h * d * format.bits,
                                    .metadata = metadata};
          ops::HashEncode(*cpu_stream_, format, d, {&work, 1});
        });
  }
};

}  // namespace litecache::ops::cuda
