// The selections of a retriever that rounding permits: scores in double precision, as intervals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/layout.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// The score that a softmax takes (Layout::score_cap).
double CappedScore(double score, float cap);

// Bounds of a score over all ways in which f32 sums may round the stored data of a key.
struct Interval {
  double low = 0, high = 0;
};

// Scores of the tokens from `begin` on, of all of a sequence's keys ([token][head_dim]) up to the
// last candidate, for a group's queries ([m][head_dim]), as defined in ops/select/hash_select.h,
// keys_select.h and projection_select.h. weights: the head's matrix, as returned by
// Retriever::Weights(); not used for keys. An interval is wider than f32's rounding only if a sum
// is so close to zero that a hash bit may have either value, or if a norm, a component, a key's
// code or scale, or a query's byte is so close to the middle of two that it may be stored as
// either. Empty for retrievers that store no rounded data (quest, exact).
std::vector<Interval> ScoreIntervals(const Layout& layout, const KvOptions& options,
                                     std::span<const float> weights,
                                     std::span<const std::vector<float>> keys, int64_t begin,
                                     std::span<const double> q, double scale);

// Whether the tokens begin + i in `selected` (ascending) can be the best of intervals[i]: no other
// token certainly scores more than a selected one.
bool CanBeBest(std::span<const Interval> intervals, int64_t begin, int64_t k,
               std::span<const int32_t> selected);

// Whether no other selection than `selected` can be the best, however f32 rounds: for selections
// that cannot be seen. Rows whose intervals are equal have equal scores, of which the first ones
// are selected.
bool IsOnlyBest(std::span<const Interval> intervals, int64_t begin,
                std::span<const int32_t> selected);

// Whether as many tokens as `selected` has can be those whose scores reach `needed`, at least
// `fewest` and at most k.
bool CanBeNeeded(std::span<const Interval> intervals, double needed, int64_t fewest, int64_t k,
                 std::span<const int32_t> selected);
// Whether only one number of tokens can be that.
bool IsOnlyNeeded(std::span<const Interval> intervals, double needed, int64_t fewest, int64_t k);

}  // namespace litecache::kv
