#include "kv/litecache/near_ties.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/dtype.h"
#include "kv/retrieve/retrievers.h"
#include "ops/keys_matrix.h"

namespace litecache::kv {
namespace {

// Relative error of a sum in f32, as a share of the sum of its terms' magnitudes; sums of 40 to 256
// terms in any order stay below it.
constexpr double kSumError = 0x1p-19;

// Error of values computed from scores in f32: exponentials and sums over a group.
constexpr double kRounding = 2e-5;

struct Sum {
  double value = 0, error = 0;
};

template <class X, class Factor>
Sum Project(std::span<const X> x, const Factor* matrix, size_t stride, size_t column) {
  Sum sum;
  for (size_t c = 0; c < x.size(); ++c) {
    const double term =
        static_cast<double>(x[c]) * static_cast<double>(matrix[c * stride + column]);
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
// tokens, of capped estimates if cap is not 0.
std::vector<Interval> SumOfSoftmax(const std::vector<std::vector<Interval>>& estimates, float cap) {
  std::vector<Interval> scores(estimates.front().size());
  for (std::vector<Interval> of_query : estimates) {
    for (Interval& x : of_query) x = {CappedScore(x.low, cap), CappedScore(x.high, cap)};
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

std::vector<Interval> HashScores(const Layout& layout, const KvOptions& options,
                                 std::span<const float> weights,
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
  return softmax ? SumOfSoftmax(estimates, layout.score_cap) : sums;
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
  return SumOfSoftmax(estimates, layout.score_cap);
}

double Magnitude(const Interval& x) { return std::max(std::abs(x.low), std::abs(x.high)); }
Interval Widened(const Interval& x, double error) { return {x.low - error, x.high + error}; }
Interval Plus(const Interval& a, const Interval& b) { return {a.low + b.low, a.high + b.high}; }
Interval Minus(const Interval& a, const Interval& b) { return {a.low - b.high, a.high - b.low}; }

// Relative error of a few operations in f32.
constexpr double kFewErrors = 0x1p-21;

// A key as ops/select/keys_select.h keeps it: channels scale * values.
struct KeptKey {
  std::vector<Interval> values;  // 2 code + 1 - 2^bits
  Interval scale;
};

// x: rotated, without its centre.
KeptKey Keep(const ops::KeysFormat& format, const std::vector<Interval>& x) {
  Interval square;
  for (const Interval& v : x) {
    const bool crosses = v.low <= 0 && v.high >= 0;
    const double least = crosses ? 0 : std::min(std::abs(v.low), std::abs(v.high));
    square = Plus(square, {least * least, Magnitude(v) * Magnitude(v)});
  }
  square = {square.low * (1 - kSumError), square.high * (1 + kSumError)};
  const auto unit = [&](double of_square) {
    return static_cast<double>(format.step()) *
           std::sqrt(of_square / static_cast<double>(format.head_dim));
  };
  if (square.high == 0) return {std::vector<Interval>(x.size()), {}};
  const Interval inverse = {0.5 / unit(square.high), 0.5 / unit(square.low)};
  const double half = std::ldexp(1.0, static_cast<int>(format.bits) - 1), most = format.offset();
  const auto value = [&](double place) {
    return 2 * std::clamp(std::floor(place), 0.0, most) - most;
  };
  KeptKey kept;
  Interval projected;
  double terms = 0;
  for (const Interval& v : x) {
    const Interval steps = Times(v, inverse);
    const Interval place =
        Widened(Plus(steps, {half, half}), (Magnitude(steps) + half) * kFewErrors);
    kept.values.push_back({value(place.low), value(place.high)});
    const Interval term = Times(v, kept.values.back());
    projected = Plus(projected, term);
    terms += Magnitude(term);
  }
  projected = Widened(projected, terms * kSumError);
  const auto stored = [](double scale) {
    return static_cast<double>(
        static_cast<float>(f16(static_cast<float>(std::min(scale, 65504.0)))));
  };
  kept.scale = {stored(square.low / projected.high * (1 - kFewErrors)),
                stored(square.high / projected.low * (1 + kFewErrors))};
  return kept;
}

// A rotated query in bytes: channels factor * bytes.
struct KeysQuery {
  std::vector<Interval> bytes;
  Interval factor;

  Interval Product(const std::vector<Interval>& x) const {
    Interval sum;
    for (size_t i = 0; i < x.size(); ++i) sum = Plus(sum, Times(bytes[i], x[i]));
    return Times(sum, factor);
  }
};

KeysQuery RoundQuery(const std::vector<Interval>& x) {
  Interval largest;
  for (const Interval& v : x) {
    largest.high = std::max(largest.high, Magnitude(v));
    if (v.low > 0 || v.high < 0) {
      largest.low = std::max(largest.low, std::min(std::abs(v.low), std::abs(v.high)));
    }
  }
  KeysQuery query{.bytes = {}, .factor = {largest.low / 127, largest.high / 127}};
  for (const Interval& v : x) {
    const Interval byte = Times(v, {127 / largest.high, 127 / largest.low});
    const Interval widened = Widened(byte, Magnitude(byte) * kFewErrors);
    query.bytes.push_back({std::nearbyint(widened.low), std::nearbyint(widened.high)});
  }
  return query;
}

template <class X>
std::vector<Interval> Rotate(const std::vector<double>& matrix, std::span<const X> x) {
  std::vector<Interval> rotated;
  for (size_t i = 0; i < x.size(); ++i) {
    const Sum sum = Project(x, matrix.data(), x.size(), i);
    rotated.push_back({sum.value - sum.error, sum.value + sum.error});
  }
  return rotated;
}

// The mean of a block's kept keys.
std::vector<Interval> MeanOf(std::span<const KeptKey> block) {
  std::vector<Interval> mean(block.front().values.size());
  const auto count = static_cast<double>(block.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    double terms = 0;
    for (const KeptKey& key : block) {
      const Interval term = Times(key.scale, key.values[i]);
      mean[i] = Plus(mean[i], {term.low / count, term.high / count});
      terms += Magnitude(term) / count;
    }
    mean[i] = Widened(mean[i], terms * kSumError);
  }
  return mean;
}

// keys: all of the sequence, of which the first `begin` are no candidates.
std::vector<Interval> KeysScores(const Layout& layout, const ops::KeysFormat& format,
                                 std::span<const std::vector<float>> keys, size_t begin,
                                 const std::vector<std::span<const double>>& queries,
                                 double scale) {
  constexpr auto kBlock = static_cast<size_t>(ops::KeysFormat::kBlockTokens);
  constexpr auto kCentre = static_cast<size_t>(ops::KeysFormat::kCentreTokens);
  const std::vector<double> matrix = ops::KeysMatrix(format.head_dim);
  std::vector<KeysQuery> rounded;
  for (const auto& query : queries) {
    rounded.push_back(RoundQuery(Rotate(matrix, query)));
  }
  const std::vector<Interval> none(static_cast<size_t>(format.head_dim));
  std::vector<Interval> first = none, centre = none;
  std::vector<KeptKey> kept;
  std::vector<std::vector<Interval>> estimates(queries.size());
  for (size_t t = 0; t < keys.size(); ++t) {
    if (t == kBlock) first = MeanOf(std::span(kept).first(kBlock));
    if (t % kCentre == 0) centre = none;
    if (t > kCentre && t % kCentre == kBlock) {
      centre = MeanOf(std::span(kept).subspan(t - kBlock, kBlock));
    }
    std::vector<Interval> x = Rotate(matrix, std::span(keys[t]));
    for (size_t i = 0; i < x.size(); ++i) {
      const double size = Magnitude(x[i]) + Magnitude(first[i]) + Magnitude(centre[i]);
      x[i] = Widened(Minus(x[i], Plus(first[i], centre[i])), size * kFewErrors);
    }
    kept.push_back(Keep(format, x));
    if (t < begin) continue;
    for (size_t j = 0; j < queries.size(); ++j) {
      const KeysQuery& query = rounded[j];
      const Interval own = Times(query.Product(kept.back().values), kept.back().scale);
      const Interval shifts[] = {query.Product(first), query.Product(centre)};
      const double size = Magnitude(own) + Magnitude(shifts[0]) + Magnitude(shifts[1]);
      const Interval product = Widened(Plus(own, Plus(shifts[0], shifts[1])), size * kFewErrors);
      estimates[j].push_back({product.low * scale, product.high * scale});
    }
  }
  return SumOfSoftmax(estimates, layout.score_cap);
}

}  // namespace

double CappedScore(double score, float cap) {
  const auto most = static_cast<double>(cap);
  return cap == 0 ? score : most * std::tanh(score / most);
}

std::vector<Interval> ScoreIntervals(const Layout& layout, const KvOptions& options,
                                     std::span<const float> weights,
                                     std::span<const std::vector<float>> all_keys, int64_t begin,
                                     std::span<const double> q, double scale) {
  const auto keys = all_keys.subspan(static_cast<size_t>(begin));
  const auto d = static_cast<size_t>(layout.head_dim);
  std::vector<std::span<const double>> queries;
  for (size_t at = 0; at < q.size(); at += d) queries.push_back(q.subspan(at, d));
  if (options.retriever == "hata")
    return HashScores(layout, options, weights, keys, queries, scale);
  if (options.retriever == "loki") {
    return ProjectionScores(layout, options, weights, keys, queries, scale);
  }
  if (options.retriever == "keys" || options.retriever == "keys2") {
    return KeysScores(layout, KeysFormatOf(layout, options.retriever), all_keys,
                      static_cast<size_t>(begin), queries, scale);
  }
  return {};
}

namespace {

// The least and the largest number of tokens whose scores may reach `needed`.
std::pair<int64_t, int64_t> NeededCounts(std::span<const Interval> intervals, double needed,
                                         int64_t fewest, int64_t k) {
  int64_t least = 0, most = 0;
  for (const Interval& x : intervals) {
    least += x.low * (1 - kRounding) >= needed ? 1 : 0;
    most += x.high * (1 + kRounding) >= needed ? 1 : 0;
  }
  return {std::clamp(least, fewest, k), std::clamp(most, fewest, k)};
}

}  // namespace

bool CanBeNeeded(std::span<const Interval> intervals, double needed, int64_t fewest, int64_t k,
                 std::span<const int32_t> selected) {
  const auto [least, most] = NeededCounts(intervals, needed, fewest, k);
  const auto count = static_cast<int64_t>(selected.size());
  return count >= least && count <= most;
}

bool IsOnlyNeeded(std::span<const Interval> intervals, double needed, int64_t fewest, int64_t k) {
  const auto [least, most] = NeededCounts(intervals, needed, fewest, k);
  return least == most;
}

bool CanBeBest(std::span<const Interval> intervals, int64_t begin, int64_t k,
               std::span<const int32_t> selected) {
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

bool IsOnlyBest(std::span<const Interval> intervals, int64_t begin,
                std::span<const int32_t> selected) {
  std::vector<Interval> chosen, left;
  size_t next = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const bool is_chosen =
        next < selected.size() && selected[next] == begin + static_cast<int64_t>(i);
    (is_chosen ? chosen : left).push_back(intervals[i]);
    next += is_chosen ? 1 : 0;
  }
  return std::ranges::all_of(chosen, [&](const Interval& a) {
    return std::ranges::all_of(left, [&](const Interval& b) {
      return (a.low == b.low && a.high == b.high) ||
             a.low - std::abs(a.low) * kRounding > b.high + std::abs(b.high) * kRounding;
    });
  });
}

}  // namespace litecache::kv
