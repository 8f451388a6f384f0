#include "kv/litecache/near_ties.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "kv/retrieve/retrievers.h"

namespace litecache::kv {
namespace {

// Relative error of a sum in f32, as a share of the sum of its terms' magnitudes; sums of 40 to 256
// terms in any order stay below it.
constexpr double kSumError = 0x1p-19;

struct Sum {
  double value = 0, error = 0;
};

template <class X>
Sum Project(std::span<const X> x, const float* matrix, size_t stride, size_t column) {
  Sum sum;
  for (size_t c = 0; c < x.size(); ++c) {
    const double term = static_cast<double>(x[c]) * matrix[c * stride + column];
    sum.value += term;
    sum.error += std::abs(term) * kSumError;
  }
  return sum;
}

// The values that a 16-bit format may store for a value known up to an error.
template <class Half>
Interval Stored(const Sum& sum) {
  return {static_cast<float>(Half(static_cast<float>(sum.value - sum.error))),
          static_cast<float>(Half(static_cast<float>(sum.value + sum.error)))};
}

Interval Times(const Interval& a, const Interval& b) {
  const double products[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  return {*std::min_element(products, products + 4), *std::max_element(products, products + 4)};
}

template <class X>
double Norm(std::span<const X> x) {
  double square = 0;
  for (const X& value : x) square += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(square);
}

// -1: zero, 1: one, 0: undecided.
template <class X>
std::vector<int> Hash(std::span<const X> x, std::span<const float> weights, size_t bits) {
  std::vector<int> code;
  for (size_t bit = 0; bit < bits; ++bit) {
    const Sum sum = Project(x, weights.data(), bits, bit);
    code.push_back(std::abs(sum.value) <= sum.error ? 0 : sum.value > 0 ? 1 : -1);
  }
  return code;
}

// Converts estimates[query][token] of scale * q.k to the sum over queries of the softmax over
// tokens.
std::vector<Interval> SumOfSoftmax(const std::vector<std::vector<Interval>>& estimates) {
  std::vector<Interval> scores(estimates.front().size());
  for (const auto& of_query : estimates) {
    double highest = -HUGE_VAL;
    for (const Interval& x : of_query) highest = std::max(highest, x.high);
    Interval total;
    for (const Interval& x : of_query) {
      total.low += std::exp(x.low - highest);
      total.high += std::exp(x.high - highest);
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i].low += std::exp(of_query[i].low - highest) / total.high;
      scores[i].high += std::exp(of_query[i].high - highest) / total.low;
    }
  }
  return scores;
}

std::vector<Interval> HashScores(const KvOptions& options, std::span<const float> weights,
                                 std::span<const std::vector<float>> keys,
                                 const std::vector<std::span<const double>>& queries,
                                 double scale) {
  const auto bits = static_cast<size_t>(options.hata_bits);
  const bool softmax = HataScore(options) == ops::HashScore::kSoftmax;
  std::vector<std::vector<int>> query_codes;
  for (const auto& query : queries) query_codes.push_back(Hash(query, weights, bits));
  std::vector<Interval> sums;
  std::vector<std::vector<Interval>> estimates(queries.size());
  for (const std::vector<float>& key : keys) {
    const std::vector<int> code = Hash(std::span(key), weights, bits);
    const double length = std::min(Norm(std::span(key)), 65504.0);
    const Interval norm =
        options.hata_norms ? Stored<f16>({length, length * kSumError}) : Interval{1, 1};
    Interval sum;
    for (size_t j = 0; j < queries.size(); ++j) {
      Interval agreement;  // 1 - 2 H / bits
      for (size_t bit = 0; bit < bits; ++bit) {
        const int product = code[bit] * query_codes[j][bit];
        agreement.low += (product == 0 ? -1.0 : product) / static_cast<double>(bits);
        agreement.high += (product == 0 ? 1.0 : product) / static_cast<double>(bits);
      }
      const Interval with_norm = Times(agreement, norm);
      sum.low += with_norm.low;
      sum.high += with_norm.high;
      const double factor = Norm(queries[j]) * scale;
      estimates[j].push_back({with_norm.low * factor, with_norm.high * factor});
    }
    sums.push_back(sum);
  }
  return softmax ? SumOfSoftmax(estimates) : sums;
}

std::vector<Interval> ProjectionScores(const Layout& layout, const KvOptions& options,
                                       std::span<const float> basis,
                                       std::span<const std::vector<float>> keys,
                                       const std::vector<std::span<const double>>& queries,
                                       double scale) {
  const ops::ProjectionFormat format = LokiFormat(layout, options);
  const auto stride = static_cast<size_t>(format.basis_stride());
  std::vector<std::vector<Interval>> estimates(queries.size());
  std::vector<std::vector<double>> components(queries.size());
  for (size_t j = 0; j < queries.size(); ++j) {
    for (size_t c = 0; c < static_cast<size_t>(format.rank); ++c) {
      components[j].push_back(Project(queries[j], basis.data(), stride, c).value * scale);
    }
  }
  for (const std::vector<float>& key : keys) {
    std::vector<Interval> estimate(queries.size());
    for (size_t c = 0; c < static_cast<size_t>(format.rank); ++c) {
      const Interval stored = Stored<bf16>(Project(std::span(key), basis.data(), stride, c));
      for (size_t j = 0; j < queries.size(); ++j) {
        const Interval term = Times(stored, {components[j][c], components[j][c]});
        estimate[j].low += term.low;
        estimate[j].high += term.high;
      }
    }
    for (size_t j = 0; j < queries.size(); ++j) estimates[j].push_back(estimate[j]);
  }
  return SumOfSoftmax(estimates);
}

}  // namespace

std::vector<Interval> ScoreIntervals(const Layout& layout, const KvOptions& options,
                                     std::span<const float> weights,
                                     std::span<const std::vector<float>> keys,
                                     std::span<const double> q, double scale) {
  const auto d = static_cast<size_t>(layout.head_dim);
  std::vector<std::span<const double>> queries;
  for (size_t at = 0; at < q.size(); at += d) queries.push_back(q.subspan(at, d));
  if (options.retriever == "hata") return HashScores(options, weights, keys, queries, scale);
  if (options.retriever == "loki") {
    return ProjectionScores(layout, options, weights, keys, queries, scale);
  }
  return {};
}

bool CanBeBest(std::span<const Interval> intervals, int64_t begin, int64_t k,
               std::span<const int32_t> selected) {
  // Error of values computed from scores in f32: exponentials and sums over a group.
  constexpr double kRounding = 2e-5;
  if (static_cast<int64_t>(selected.size()) != k) return false;
  double least = HUGE_VAL, left = -HUGE_VAL;
  size_t next = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const Interval& x = intervals[i];
    if (next < selected.size() && selected[next] == begin + static_cast<int64_t>(i)) {
      least = std::min(least, x.high + std::abs(x.high) * kRounding);
      ++next;
    } else {
      left = std::max(left, x.low - std::abs(x.low) * kRounding);
    }
  }
  return next == selected.size() && least >= left;
}

}  // namespace litecache::kv
