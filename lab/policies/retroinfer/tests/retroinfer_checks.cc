// What the driver compares with the oracle: selections, cached blocks, outputs.
#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "kv/attention_error.h"
#include "lab/policies/retroinfer/options.h"
#include "lab/policies/retroinfer/tests/retroinfer_driver.h"

namespace litecache::lab {
namespace {

double Dot(const float* q, const std::vector<double>& key) {
  double sum = 0;
  for (size_t i = 0; i < key.size(); ++i) sum += static_cast<double>(q[i]) * key[i];
  return sum;
}

}  // namespace

void RetroDriver::CheckChoice(const Sequence& sequence, const Head& head, const RetroChoice& choice,
                              const float* q) {
  const auto clusters = static_cast<size_t>(sequence.clusters);
  std::vector<double> scores(clusters, 0.0);
  size_t filled = 0;
  for (size_t c = 0; c < clusters; ++c) filled += !head.clusters[c].empty();
  for (int64_t j = 0; j < shape_.group; ++j) {
    std::vector<double> x(clusters);
    double maximum = -HUGE_VAL, sum = 0;
    for (size_t c = 0; c < clusters; ++c) {
      x[c] = static_cast<double>(scale_) * Dot(q + j * layout_.head_dim, head.centroids[c]);
      if (!head.clusters[c].empty()) maximum = std::max(maximum, x[c]);
    }
    for (size_t c = 0; c < clusters; ++c) {
      if (!head.clusters[c].empty()) sum += std::exp(x[c] - maximum);
    }
    for (size_t c = 0; c < clusters; ++c) scores[c] += std::exp(x[c] - maximum) / sum;
  }
  const auto nprobe = static_cast<size_t>(sequence.nprobe);
  const size_t wanted = std::min(static_cast<size_t>(sequence.nprobe + sequence.estimated), filled);
  ASSERT_EQ(choice.retrieved.size() + choice.estimated.size(), wanted);
  std::set<int32_t> chosen;
  const auto take = [&](int32_t c) {
    ASSERT_FALSE(head.clusters[static_cast<size_t>(c)].empty());
    ASSERT_TRUE(chosen.insert(c).second);
  };
  // The execution buffer takes clusters in order until one does not fit.
  int64_t blocks = 0;
  const auto blocks_of = [&](int32_t c) {
    const auto size = static_cast<int64_t>(head.clusters[static_cast<size_t>(c)].size());
    return (size + shape_.o.block_tokens - 1) / shape_.o.block_tokens;
  };
  const auto score = [&](int32_t c) { return scores[static_cast<size_t>(c)]; };
  // A GPU multiplies queries as two parts of 8 bits each.
  const double rounding = shape_.on_gpu && layout_.dtype == DType::kBF16 ? 1e-3 : 1e-4;
  const auto near = [rounding](double x) { return rounding * x + 1e-9; };
  for (size_t i = 0; i < choice.retrieved.size(); ++i) {
    take(choice.retrieved[i]);
    blocks += blocks_of(choice.retrieved[i]);
    if (i > 0) {
      ASSERT_LE(score(choice.retrieved[i]),
                score(choice.retrieved[i - 1]) + near(score(choice.retrieved[i - 1])));
    }
  }
  ASSERT_LE(blocks, shape_.BufferBlocks(sequence.nprobe));
  for (const int32_t c : choice.estimated) take(c);
  if (choice.retrieved.size() < std::min(nprobe, wanted)) {
    ++overflows_;
    ASSERT_GT(blocks + blocks_of(choice.estimated.front()), shape_.BufferBlocks(sequence.nprobe));
  }
  double least_retrieved = HUGE_VAL, least = HUGE_VAL;
  for (const int32_t c : choice.retrieved) least_retrieved = std::min(least_retrieved, score(c));
  for (const int32_t c : choice.estimated) {
    least = std::min(least, score(c));
    if (choice.retrieved.size() == nprobe) {
      ASSERT_LE(score(c), least_retrieved + near(score(c)));
    }
  }
  least = std::min(least, least_retrieved);
  for (size_t c = 0; c < clusters; ++c) {
    if (head.clusters[c].empty() || chosen.contains(static_cast<int32_t>(c))) continue;
    ASSERT_LE(scores[c], least + near(scores[c]));
  }
}

void RetroDriver::CheckCache(SequenceId id, const Sequence& sequence, int64_t layer,
                             int64_t kv_head, const RetroChoice& choice) {
  const int64_t list = shape_.List(layer, kv_head);
  Head& head = sequences_[id].heads[static_cast<size_t>(list)];
  std::vector<int32_t> hits, misses;
  const auto blocks_of = [&](int32_t c) {
    const auto size = static_cast<int64_t>(head.clusters[static_cast<size_t>(c)].size());
    return (size + shape_.o.block_tokens - 1) / shape_.o.block_tokens;
  };
  for (const int32_t c : choice.retrieved) {
    const bool held = std::find(head.lru.begin(), head.lru.end(), c) != head.lru.end();
    (held ? hits : misses).push_back(c);
  }
  ASSERT_EQ(choice.hits, hits);
  for (auto hit = hits.rbegin(); hit != hits.rend(); ++hit) {
    head.lru.remove(*hit);
    head.lru.push_front(*hit);
  }
  const int64_t capacity = shape_.CacheBlocks(sequence.nprobe);
  int64_t used = 0, needed = 0;
  size_t admitted = 0;
  for (const int32_t c : head.lru) used += blocks_of(c);
  while (admitted < misses.size() && needed + blocks_of(misses[admitted]) <= capacity) {
    needed += blocks_of(misses[admitted++]);
  }
  while (used + needed > capacity) {
    used -= blocks_of(head.lru.back());
    head.lru.pop_back();
  }
  for (size_t i = 0; i < admitted; ++i) head.lru.push_front(misses[i]);
  const std::vector<int32_t> expected(head.lru.begin(), head.lru.end());
  ASSERT_EQ(cache_->Cached(id, layer, kv_head), expected);
  auto rows = cache_->CachedRows(id, layer, kv_head);
  for (const int32_t c : expected) {
    ASSERT_EQ(rows[c], cache_->ClusterRows(id, layer, kv_head, c)) << "cluster " << c;
  }
}

void RetroDriver::CheckDecode(const StepSequence& part, int64_t layer, const float* q,
                              const float* out) {
  const Sequence& sequence = sequences_[part.id];
  const auto d = static_cast<size_t>(layout_.head_dim);
  const int64_t n = part.past + 1;
  for (int64_t kv_head = 0; kv_head < layout_.kv_heads; ++kv_head) {
    const Head& head = sequence.heads[static_cast<size_t>(shape_.List(layer, kv_head))];
    const float* queries = q + kv_head * shape_.group * layout_.head_dim;
    RetroChoice choice;
    if (sequence.clusters > 0) {
      ASSERT_TRUE(choices_.contains({part.id, layer, kv_head}));
      choice = choices_[{part.id, layer, kv_head}];
      CheckChoice(sequence, head, choice, queries);
      if (::testing::Test::HasFatalFailure()) return;
      CheckCache(part.id, sequence, layer, kv_head, choice);
      if (::testing::Test::HasFatalFailure()) return;
    }
    // A GPU multiplies queries with centroids as two parts of 8 bits each.
    const double tolerance = std::max(AttentionTolerance(layout_.dtype), shape_.on_gpu ? 1e-3 : 0);
    std::vector<int64_t> exact;
    for (int64_t t = 0; t < std::min(shape_.sink, n); ++t) exact.push_back(t);
    for (int64_t t = sequence.indexed_end; t < n; ++t) exact.push_back(t);
    for (const int32_t c : choice.retrieved) {
      const auto& tokens = head.clusters[static_cast<size_t>(c)];
      exact.insert(exact.end(), tokens.begin(), tokens.end());
    }
    for (int64_t j = 0; j < shape_.group; ++j) {
      const float* query = queries + j * layout_.head_dim;
      std::vector<double> numerator(d, 0.0);
      double denominator = 0, maximum = -HUGE_VAL;
      std::vector<double> x, y;
      for (const int64_t t : exact) {
        x.push_back(static_cast<double>(scale_) * Dot(query, head.keys[static_cast<size_t>(t)]));
        maximum = std::max(maximum, x.back());
      }
      for (const int32_t c : choice.estimated) {
        y.push_back(static_cast<double>(scale_) *
                    Dot(query, head.centroids[static_cast<size_t>(c)]));
        maximum = std::max(maximum, y.back());
      }
      for (size_t i = 0; i < exact.size(); ++i) {
        const double weight = std::exp(x[i] - maximum);
        denominator += weight;
        for (size_t e = 0; e < d; ++e) {
          numerator[e] += weight * head.values[static_cast<size_t>(exact[i])][e];
        }
      }
      for (size_t i = 0; i < choice.estimated.size(); ++i) {
        const auto c = static_cast<size_t>(choice.estimated[i]);
        const double weight = std::exp(y[i] - maximum);
        denominator += static_cast<double>(head.clusters[c].size()) * weight;
        for (size_t e = 0; e < d; ++e) numerator[e] += weight * head.sums[c][e];
      }
      for (double& x : numerator) x /= denominator;
      const std::span got(out + (kv_head * shape_.group + j) * layout_.head_dim, d);
      ASSERT_LE(testing::RelativeError(got, numerator), tolerance)
          << "sequence " << part.id << " layer " << layer << " past " << part.past;
    }
  }
}

void RetroDriver::CheckPrefill(const StepSequence& part, int64_t layer, const float* q,
                               const float* out) {
  const Sequence& sequence = sequences_[part.id];
  const auto d = static_cast<size_t>(layout_.head_dim);
  const int64_t q_cols = layout_.q_heads * layout_.head_dim;
  // The first and the last row, and some in between.
  for (int64_t row = 0; row < part.rows; row += std::max<int64_t>(part.rows / 5, 1)) {
    for (int64_t h = 0; h < layout_.q_heads; ++h) {
      const Head& head = sequence.heads[static_cast<size_t>(shape_.List(layer, h / shape_.group))];
      const float* query = q + row * q_cols + h * layout_.head_dim;
      std::vector<double> sum(d, 0.0);
      double total = 0;
      for (int64_t t = 0; t <= part.past + row; ++t) {
        const auto at = static_cast<size_t>(t);
        const double weight = std::exp(static_cast<double>(scale_) * Dot(query, head.keys[at]));
        total += weight;
        for (size_t e = 0; e < d; ++e) sum[e] += weight * head.values[at][e];
      }
      for (double& x : sum) x /= total;
      const std::span got(out + row * q_cols + h * layout_.head_dim, d);
      ASSERT_LE(testing::RelativeError(got, sum), AttentionTolerance(layout_.dtype))
          << "prompt of sequence " << part.id << " layer " << layer << " past " << part.past;
    }
  }
}

}  // namespace litecache::lab
