// A random life of sequences under policy pqcache beside the published algorithm in double
// precision: codes, selection, block cache, output.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lab/namespaces.h"
#include "lab/policies/pqcache/diagnosis.h"
#include "lab/policies/pqcache/options.h"
#include "lab/tests/life.h"

namespace litecache::lab {

// A straightforward LFU: evicts the block with the fewest uses; ties go to the one used longest
// ago.
class PlainLfu {
 public:
  bool Has(int64_t block) const { return entries_.contains(block); }
  size_t size() const { return entries_.size(); }
  void Use(int64_t block, size_t capacity) {
    ++clock_;
    if (!Has(block)) {
      if (capacity == 0) return;
      if (entries_.size() >= capacity) {
        auto least = entries_.begin();
        for (auto it = entries_.begin(); it != entries_.end(); ++it) {
          if (it->second < least->second) least = it;
        }
        entries_.erase(least);
      }
      entries_[block] = {0, 0};
    }
    ++entries_[block].first;
    entries_[block].second = clock_;
  }

 private:
  int64_t clock_ = 0;
  std::map<int64_t, std::pair<int64_t, int64_t>> entries_;  // uses, time of the last one
};

class PqLife final : public Life {
 public:
  PqLife(const Layout& layout, const KvOptions& options, uint64_t seed, const Settings& settings)
      : Life(MakeCachePlan(layout, options, nullptr, TypeOf(settings.device)), seed, settings),
        options_(options.settings.Of<PqCacheOptions>()) {
    if (settings.trace != nullptr) forced_.emplace(settings.trace, layout, options_.share / 2);
  }

  void CheckCacheContents(bool check) { check_cache_ = check; }
  int64_t indexed() const { return indexed_; }
  int64_t dense() const { return dense_; }
  int64_t left_out() const { return left_out_; }
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }

 private:
  struct Known {
    int64_t prompt = -1;                 // tokens when the first token after a prompt arrived
    std::map<int64_t, PlainLfu> caches;  // by layer
    std::set<int64_t> clustered;         // layers whose centroids have been checked
  };

  pqcache::Diagnosis& impl() { return dynamic_cast<pqcache::Diagnosis&>(*cache_); }
  int64_t dim() const { return layout_.head_dim / options_.subspaces; }
  int64_t clusters() const { return int64_t{1} << options_.bits; }

  void EndPrompt(const StepSequence& part) override { known_[part.id] = {}; }
  void Forked(SequenceId parent, SequenceId child) override {
    known_[child] = {};
    known_[child].prompt = known_[parent].prompt;
  }

  std::vector<double> Decode(const StepSequence& part, int64_t index, int64_t layer, const float* q,
                             const float*, const Rows& rows) override {
    std::vector<double> expected(static_cast<size_t>(layout_.q_heads * layout_.head_dim));
    Known& known = known_[part.id];
    if (known.prompt < 0) known.prompt = part.past;
    const bool indexed = known.prompt - options_.sink_tokens > clusters();
    EXPECT_EQ(impl().indexed(part.id), indexed);
    if (!indexed) {
      std::vector<int64_t> all(static_cast<size_t>(part.past + 1));
      std::iota(all.begin(), all.end(), 0);
      for (int64_t head = 0; head < layout_.kv_heads; ++head) {
        AttendTo(all, head, q, rows, &expected);
      }
      ++dense_;
      return expected;
    }
    ++indexed_;
    const auto budget = static_cast<int64_t>(
        static_cast<double>(known.prompt - options_.sink_tokens) * options_.share * 0.5 + 1e-9);
    EXPECT_EQ(impl().RowBudget(part.id), budget);
    if (known.clustered.insert(layer).second) CheckCentroids(part, known, layer, rows);

    const int64_t recent = part.past - budget;
    std::map<int64_t, int64_t> counts;  // selected rows of whole blocks
    for (int64_t head = 0; head < layout_.kv_heads; ++head) {
      const pqcache::Diagnosis::Selected selected = impl().SelectedRows(index, head);
      std::vector<int64_t> tokens;
      for (int64_t t = 0; t < options_.sink_tokens; ++t) tokens.push_back(t);
      std::vector<int64_t> chosen(selected.hits.begin(), selected.hits.end());
      chosen.insert(chosen.end(), selected.misses.begin(), selected.misses.end());
      CheckSelection(part, layer, head, q, rows, budget, chosen);
      tokens.insert(tokens.end(), chosen.begin(), chosen.end());
      for (int64_t t = recent; t <= part.past; ++t) tokens.push_back(t);
      AttendTo(tokens, head, q, rows, &expected);
      const auto block = [&](int64_t t) {
        return (t - options_.sink_tokens) / options_.block_tokens;
      };
      for (const int64_t t : chosen) {
        if (options_.sink_tokens + (block(t) + 1) * options_.block_tokens <= part.past) {
          ++counts[block(t)];
        }
      }
      hits_ += static_cast<int64_t>(selected.hits.size());
      misses_ += static_cast<int64_t>(selected.misses.size());
      if (!check_cache_) continue;
      for (const int32_t t : selected.hits) EXPECT_TRUE(known.caches[layer].Has(block(t))) << t;
      for (const int32_t t : selected.misses) EXPECT_FALSE(known.caches[layer].Has(block(t))) << t;
    }
    if (check_cache_) CheckCache(part, layer, counts, &known.caches[layer]);
    return expected;
  }

  double Distance(const float* centroid, const double* key) const {
    double sum = 0;
    for (int64_t c = 0; c < dim(); ++c) {
      const double x = static_cast<double>(centroid[c]) - key[c];
      sum += x * x;
    }
    return sum;
  }

  // At least as good as Lloyd's algorithm in double precision from the same start.
  void CheckCentroids(const StepSequence& part, const Known& known, int64_t layer,
                      const Rows& rows) {
    const int64_t n = known.prompt - options_.sink_tokens;
    std::vector<int64_t> all(static_cast<size_t>(n)), start;
    std::iota(all.begin(), all.end(), 0);
    std::mt19937_64 random(4321);
    std::sample(all.begin(), all.end(), std::back_inserter(start), clusters(), random);
    for (int64_t head = 0; head < layout_.kv_heads; ++head) {
      for (int64_t s = 0; s < options_.subspaces; ++s) {
        const auto key = [&](int64_t i) {
          return rows.k[static_cast<size_t>(options_.sink_tokens + i)].data() +
                 head * layout_.head_dim + s * dim();
        };
        std::vector<std::vector<double>> own;
        for (const int64_t i : start) own.emplace_back(key(i), key(i) + dim());
        const auto nearest = [&](int64_t i, double* distance) {
          size_t best = 0;
          *distance = HUGE_VAL;
          for (size_t j = 0; j < own.size(); ++j) {
            double sum = 0;
            for (int64_t c = 0; c < dim(); ++c) {
              const double x = own[j][static_cast<size_t>(c)] - key(i)[c];
              sum += x * x;
            }
            if (sum < *distance) {
              *distance = sum;
              best = j;
            }
          }
          return best;
        };
        double distance = 0;
        for (int64_t round = 0; round < std::max<int64_t>(options_.iterations, 3); ++round) {
          std::vector<std::vector<double>> sums(own.size(),
                                                std::vector<double>(static_cast<size_t>(dim())));
          std::vector<double> sizes(own.size());
          for (int64_t i = 0; i < n; ++i) {
            const size_t j = nearest(i, &distance);
            ++sizes[j];
            for (int64_t c = 0; c < dim(); ++c) sums[j][static_cast<size_t>(c)] += key(i)[c];
          }
          for (size_t j = 0; j < own.size(); ++j) {
            if (sizes[j] == 0) continue;
            for (double& x : sums[j]) x /= sizes[j];
            own[j] = sums[j];
          }
        }
        double expected = 0, actual = 0;
        const std::vector<float> all_centroids = impl().Centroids(part.id, layer, head);
        const float* centroids = all_centroids.data() + s * clusters() * dim();
        for (int64_t i = 0; i < n; ++i) {
          nearest(i, &distance);
          expected += distance;
          double least = HUGE_VAL;
          for (int64_t j = 0; j < clusters(); ++j) {
            least = std::min(least, Distance(centroids + j * dim(), key(i)));
          }
          actual += least;
        }
        EXPECT_LE(actual, expected * 1.05 + 1e-6) << "layer " << layer << " head " << head;
      }
    }
  }

  void CheckSelection(const StepSequence& part, int64_t layer, int64_t head, const float* q,
                      const Rows& rows, int64_t budget, const std::vector<int64_t>& chosen) {
    const int64_t begin = options_.sink_tokens, end = part.past - budget;
    const int64_t k = std::min(budget, std::max<int64_t>(end - begin, 0));
    ASSERT_EQ(static_cast<int64_t>(chosen.size()), k);
    ASSERT_EQ(std::set<int64_t>(chosen.begin(), chosen.end()).size(), chosen.size());
    if (k == 0) return;
    if (forced_) {
      EXPECT_THAT(chosen, ::testing::UnorderedElementsAreArray(
                              Forced(*forced_, part, layer, head, begin, end, chosen.size())));
      left_out_ += k < end - begin;
      return;
    }
    const std::vector<float> all_centroids = impl().Centroids(part.id, layer, head);
    const float* centroids = all_centroids.data();
    const std::vector<uint8_t> codes = impl().Codes(part.id, layer, head, end);
    std::vector<double> scores(static_cast<size_t>(end - begin));
    for (int64_t j = 0; j < group(); ++j) {
      std::vector<double> own;
      for (int64_t t = begin; t < end; ++t) {
        double score = 0;
        for (int64_t s = 0; s < options_.subspaces; ++s) {
          const int code = codes[static_cast<size_t>(t * options_.subspaces + s)];
          const double* key =
              rows.k[static_cast<size_t>(t)].data() + head * layout_.head_dim + s * dim();
          const float* table = centroids + s * clusters() * dim();
          if (j == 0 && t % 8 == part.past % 8) {  // the nearest, up to rounding
            double least = HUGE_VAL, size = 1;
            for (int64_t c = 0; c < clusters(); ++c) {
              least = std::min(least, Distance(table + c * dim(), key));
            }
            for (int64_t c = 0; c < dim(); ++c) size += key[c] * key[c];
            ASSERT_LT(code, clusters());
            EXPECT_LE(Distance(table + code * dim(), key), least + 1e-4 * size) << "token " << t;
          }
          for (int64_t c = 0; c < dim(); ++c) {
            score +=
                static_cast<double>(q[(head * group() + j) * layout_.head_dim + s * dim() + c]) *
                static_cast<double>(table[code * dim() + c]);
          }
        }
        own.push_back(score * static_cast<double>(scale_));
      }
      const double largest = *std::max_element(own.begin(), own.end());
      double sum = 0;
      for (double& x : own) sum += x = std::exp(x - largest);
      for (size_t i = 0; i < own.size(); ++i) scores[i] += own[i] / sum;
    }
    std::vector<double> sorted = scores;
    std::sort(sorted.rbegin(), sorted.rend());
    const double least = sorted[static_cast<size_t>(k - 1)];
    for (const int64_t t : chosen) {
      ASSERT_GE(t, begin);
      ASSERT_LT(t, end);
      EXPECT_GE(scores[static_cast<size_t>(t - begin)], least * (1 - 1e-3)) << "token " << t;
    }
    left_out_ += k < end - begin;
  }

  void CheckCache(const StepSequence& part, int64_t layer, const std::map<int64_t, int64_t>& counts,
                  PlainLfu* lfu) {
    const auto capacity = static_cast<size_t>(
        std::min(options_.cache_tokens / options_.block_tokens,
                 (part.past + 1 - options_.sink_tokens) / options_.block_tokens));
    std::vector<std::pair<int64_t, int64_t>> order;
    for (const auto& [block, count] : counts) order.emplace_back(-count, block);
    std::sort(order.begin(), order.end());
    order.resize(std::min(order.size(), capacity));
    for (size_t i = order.size(); i > 0; --i) lfu->Use(order[i - 1].second, capacity);
    std::set<int64_t> slots;
    for (int64_t block = 0; block <= part.past / options_.block_tokens; ++block) {
      const int64_t slot = impl().SlotOf(part.id, layer, block);
      EXPECT_EQ(slot >= 0, lfu->Has(block)) << "block " << block << " past " << part.past;
      if (slot >= 0) {
        EXPECT_TRUE(slots.insert(slot).second);
      }
    }
    EXPECT_LE(lfu->size(), capacity);
  }

  PqCacheOptions options_;
  std::optional<ForcedSelection> forced_;
  bool check_cache_ = true;
  std::map<SequenceId, Known> known_;
  int64_t indexed_ = 0, dense_ = 0, left_out_ = 0, hits_ = 0, misses_ = 0;
};

}  // namespace litecache::lab
