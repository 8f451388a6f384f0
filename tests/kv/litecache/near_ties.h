// Which selections of a retriever rounding permits: scores in double precision, as intervals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/layout.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// A score lies between these, whichever way f32 sums round what is stored of a key.
struct Interval {
  double low = 0, high = 0;
};

// Scores of the tokens with these keys ([token][head_dim]) for a group's queries ([m][head_dim]),
// by the definitions in ops/select/hash_select.h and ops/select/projection_select.h. weights: the
// head's matrix, as Retriever::Weights() has it. An interval is wider than f32's rounding only
// where a sum is so close to zero that a hash bit may be either one, or where a norm or a component
// is so close to the middle of two numbers of its 16-bit format that it may be stored as either
// one. Empty for retrievers that store nothing rounded (quest, exact).
std::vector<Interval> ScoreIntervals(const Layout& layout, const KvOptions& options,
                                     std::span<const float> weights,
                                     std::span<const std::vector<float>> keys,
                                     std::span<const double> q, double scale);

// Whether the tokens begin + i that `selected` names (ascending) can be the best of intervals[i]:
// none that is left out certainly scores more than one that is selected.
bool CanBeBest(std::span<const Interval> intervals, int64_t begin, int64_t k,
               std::span<const int32_t> selected);

}  // namespace litecache::kv
