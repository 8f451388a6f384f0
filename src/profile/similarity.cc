#include "profile/similarity.h"

#include <algorithm>
#include <cmath>

namespace litecache::profile {

float Cosine(const float* a, const float* b, int64_t n) {
  double dot = 0, aa = 0, bb = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = double{a[i]}, y = double{b[i]};
    dot += x * y;
    aa += x * x;
    bb += y * y;
  }
  return aa > 0 && bb > 0 ? static_cast<float>(dot / (std::sqrt(aa) * std::sqrt(bb))) : 0;
}

float GroupSimilarity(ops::Aggregation aggregation, int64_t group, int64_t head_dim, const float* q,
                      const float* label, const float* importance) {
  std::vector<float> similarities(static_cast<size_t>(group));
  for (int64_t j = 0; j < group; ++j) {
    similarities[static_cast<size_t>(j)] = Cosine(q + j * head_dim, label + j * head_dim, head_dim);
  }
  return ops::AggregateSimilarity(aggregation, similarities, importance);
}

void AdjacentSimilarity::Add(ops::Aggregation aggregation, int64_t steps, int64_t group_size,
                             int64_t head_dim, const float* queries, const float* importance) {
  heads.resize(static_cast<size_t>(group_size));
  std::vector<float> similarities(static_cast<size_t>(group_size));
  const int64_t width = group_size * head_dim;
  for (int64_t t = 1; t < steps; ++t) {
    for (int64_t j = 0; j < group_size; ++j) {
      const float* q = queries + t * width + j * head_dim;
      similarities[static_cast<size_t>(j)] = Cosine(q, q - width, head_dim);
      heads[static_cast<size_t>(j)] += double{similarities[static_cast<size_t>(j)]};
    }
    group += double{ops::AggregateSimilarity(aggregation, similarities, importance)};
  }
  pairs += std::max<int64_t>(steps - 1, 0);
}

}  // namespace litecache::profile
