// Cosine similarities of queries.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/reuse/qsac_lookup.h"

namespace litecache::profile {

// cos(a, b) of n values; 0 if one of them is zero.
float Cosine(const float* a, const float* b, int64_t n);

// A group's cosines aggregated as in a lookup: q, label [group][head_dim].
float GroupSimilarity(ops::Aggregation aggregation, int64_t group, int64_t head_dim, const float* q,
                      const float* label, const float* importance);

// Sums over adjacent steps of queries [steps][group][head_dim].
struct AdjacentSimilarity {
  std::vector<double> heads;  // [group]
  double group = 0;           // aggregated
  int64_t pairs = 0;

  void Add(ops::Aggregation aggregation, int64_t steps, int64_t group_size, int64_t head_dim,
           const float* queries, const float* importance);
};

}  // namespace litecache::profile
