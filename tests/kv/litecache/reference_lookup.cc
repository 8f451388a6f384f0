// QSAC's lookup and the selection of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include "kv/litecache/near_ties.h"
#include "kv/litecache/reference.h"
#include "ops/select/need.h"

namespace litecache::kv {
namespace {

// A similarity this close to its threshold, or a score this close to the k-th, may be decided
// either way in f32.
constexpr double kTie = 2e-5;

}  // namespace

std::vector<int32_t> Reference::TopK(int64_t layer, int64_t head, const Head& state,
                                     const std::vector<Vector>& keys, const Vector& q, float scale,
                                     int64_t begin, int64_t end, int64_t k,
                                     const std::vector<int32_t>* observed, bool* certain) {
  std::vector<int32_t> all(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
  std::iota(all.begin(), all.end(), static_cast<int32_t>(begin));
  if (static_cast<int64_t>(all.size()) <= k) return all;
  // With a budget by need: the least score and the fewest rows that are selected.
  const int64_t fewest = options_.budget.by_need ? (k + 9) / 10 : 0;
  const auto needed =
      static_cast<double>(ops::NeededScore(group_, static_cast<int64_t>(all.size())));

  if (retriever_ != nullptr) {
    std::vector<std::byte*> pages;
    for (const auto& bytes : state.metadata) pages.push_back(const_cast<std::byte*>(bytes.data()));
    const std::vector<float> query(q.begin(), q.end());
    std::vector<int32_t> positions(static_cast<size_t>(k));
    SelectWork work{.layer = layer,
                    .head = head,
                    .q = query.data(),
                    .scale = scale,
                    .begin = begin,
                    .end = end,
                    .k = k,
                    .fewest = fewest,
                    .metadata = pages.data(),
                    .rows = {},
                    .positions = positions.data()};
    retriever_->Select(*stream_, {&work, 1});
    positions.resize(static_cast<size_t>(work.count));
    if (certain == nullptr && (observed == nullptr || *observed == positions)) return positions;
    // Another set is equally good if only rounding decides between the two.
    const std::span<const float> weights = retriever_->Weights(layer);
    const size_t of_head = weights.size() / static_cast<size_t>(layout_.kv_heads);
    const std::vector<Interval> intervals = ScoreIntervals(
        layout_, options_, weights.subspan(static_cast<size_t>(head) * of_head, of_head),
        std::span(state.encoded_keys).first(static_cast<size_t>(end)), begin, q,
        static_cast<double>(scale));
    if (certain != nullptr) {
      *certain =
          intervals.empty() || ((fewest == 0 || IsOnlyNeeded(intervals, needed, fewest, k)) &&
                                IsOnlyBest(intervals, begin, positions));
    }
    if (observed == nullptr || *observed == positions) return positions;
    if (fewest > 0 && !CanBeNeeded(intervals, needed, fewest, k, *observed)) return positions;
    const int64_t rows = fewest > 0 ? static_cast<int64_t>(observed->size()) : k;
    const bool tie = !intervals.empty() && CanBeBest(intervals, begin, rows, *observed);
    return tie ? *observed : positions;
  }

  // The attention mass of each candidate, summed over the group.
  const size_t count = all.size();
  const auto d = static_cast<size_t>(layout_.head_dim);
  Vector mass(count, 0.0);
  for (size_t j = 0; j < static_cast<size_t>(group_); ++j) {
    Vector logits(count);
    for (size_t i = 0; i < count; ++i) {
      const Vector& key = keys[static_cast<size_t>(all[i])];
      double dot = 0;
      for (size_t c = 0; c < d; ++c) dot += q[j * d + c] * key[c];
      logits[i] = CappedScore(dot * static_cast<double>(scale), layout_.score_cap);
    }
    const double highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double& x : logits) sum += x = std::exp(x - highest);
    for (size_t i = 0; i < count; ++i) mass[i] += logits[i] / sum;
  }
  std::vector<int32_t> order = all;
  const auto at = [&](int32_t position) { return mass[static_cast<size_t>(position - begin)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  if (fewest > 0) {
    const auto reaching = [&](double least) {
      return std::clamp<int64_t>(std::ranges::count_if(mass, [&](double x) { return x >= least; }),
                                 fewest, k);
    };
    const int64_t seen = observed != nullptr ? static_cast<int64_t>(observed->size()) : -1;
    // Rounding decides about rows at the limit.
    k = seen >= reaching(needed * (1 + kTie)) && seen <= reaching(needed * (1 - kTie))
            ? seen
            : reaching(needed);
  }
  const double last = at(order[static_cast<size_t>(k - 1)]);
  if (certain != nullptr) {
    const double next = at(order[static_cast<size_t>(k)]);
    *certain = last * (1 - kTie) > next * (1 + kTie);
  }
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  if (observed == nullptr || *observed == order) return order;
  // Another set is equally good if it differs only among equal scores.
  std::vector<int32_t> missing;
  std::set_difference(order.begin(), order.end(), observed->begin(), observed->end(),
                      std::back_inserter(missing));
  std::vector<int32_t> extra;
  std::set_difference(observed->begin(), observed->end(), order.begin(), order.end(),
                      std::back_inserter(extra));
  const bool tie = missing.size() == extra.size() &&
                   std::all_of(missing.begin(), missing.end(),
                               [&](int32_t p) { return at(p) <= last * (1 + kTie); }) &&
                   std::all_of(extra.begin(), extra.end(), [&](int32_t p) {
                     return p >= begin && p < end && at(p) >= last * (1 - kTie);
                   });
  return tie ? *observed : order;
}

double Reference::Similarity(int64_t layer, int64_t head, const Vector& q,
                             const Vector& label) const {
  const auto d = static_cast<size_t>(layout_.head_dim);
  Vector similarities;
  for (size_t j = 0; j < static_cast<size_t>(group_); ++j) {
    double dot = 0, qq = 0, ll = 0;
    for (size_t c = j * d; c < (j + 1) * d; ++c) {
      dot += q[c] * label[c];
      qq += q[c] * q[c];
      ll += label[c] * label[c];
    }
    similarities.push_back(qq > 0 && ll > 0 ? dot / std::sqrt(qq * ll) : 0.0);
  }
  const double smallest = *std::min_element(similarities.begin(), similarities.end());
  if (options_.aggregation == "min") return smallest;
  if (options_.aggregation == "mean") {
    return std::accumulate(similarities.begin(), similarities.end(), 0.0) /
           static_cast<double>(group_);
  }
  // sim = sum_j s_j / sum_j (s_j / sim_j)
  Vector s(static_cast<size_t>(group_), 1.0);
  if (options_.aggregation == "importance") {
    const float* importance = plan_.importance.data() + layer * layout_.q_heads + head * group_;
    if (std::any_of(importance, importance + group_, [](float x) { return x > 0; })) {
      s.assign(importance, importance + group_);
    }
  }
  double weights = 0, reciprocals = 0, lowest = 1;
  bool positive = true;
  for (size_t j = 0; j < s.size(); ++j) {
    if (s[j] == 0) continue;
    weights += s[j];
    reciprocals += s[j] / similarities[j];
    positive = positive && similarities[j] > 0;
    lowest = std::min(lowest, similarities[j]);
  }
  return positive ? weights / reciprocals : lowest;
}

bool Reference::LookUp(int64_t layer, int64_t head, int64_t n, const Vector& q, float scale,
                       double tau, const bool* seen, const std::vector<int32_t>* cached,
                       Head* state) {
  const double similarity = Similarity(layer, head, q, state->label);
  // Rows chosen by a query that was taken back.
  if (state->window_begin > n - options_.recent_tokens) tau = 2;
  bool hit = similarity > tau;
  if (seen != nullptr) {
    if (std::abs(similarity - tau) < kTie) hit = *seen;
    EXPECT_EQ(hit, *seen) << "layer " << layer << " head " << head << " at " << n
                          << " tokens: similarity " << similarity << ", tau " << tau;
  }
  if (hit) return true;
  const std::vector<Vector>& keys = Coded(layer, head) ? state->stored_k : state->k;
  state->cached = TopK(layer, head, *state, keys, q, scale, options_.sink_tokens,
                       n - options_.recent_tokens, options_.budget.RowsFor(n), cached);
  state->label = q;
  state->window_begin = n - options_.recent_tokens;
  state->cached_end = std::max(state->cached_end, state->window_begin);
  return false;
}

}  // namespace litecache::kv
