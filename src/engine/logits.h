// Passes over one row of logits [vocab].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "litecache/engine.h"

namespace litecache::engine {

// Index of the largest value, the lowest of equals. The row is not empty and finite.
int32_t ArgMax(std::span<const float> row);
float Max(std::span<const float> row);
bool AllFinite(std::span<const float> row);

// exp((row[i] - max) * scale) into weights, and their sum over blocks of kWeightBlock entries.
// Float exponentials (relative error below 3e-7), sums in double: a logit's own rounding, 1e-6 at
// 20, is coarser. max is the row's largest value, scale > 0.
inline constexpr size_t kWeightBlock = 1024;
double Weights(std::span<const float> row, float max, float scale, std::span<float> weights,
               std::vector<double>* block_sums);

// log(sum(exp(row))).
double LogSumExp(std::span<const float> row);

struct Candidate {
  float logit = 0;
  int32_t token = 0;
};
// The larger logit first, the lower token first among equals.
inline bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}
// The k largest values, sorted, the lower token first among equals. One pass in O(vocab) on
// average, no sort of the row.
void SelectTop(std::span<const float> row, size_t k, std::vector<Candidate>* out);

// Log-probabilities over the full softmax of the raw logits: the token's, and the k most likely.
TokenLogprob LogprobOf(std::span<const float> row, int32_t token, double log_sum);
std::vector<TokenLogprob> TopLogprobs(std::span<const float> row, size_t k, double log_sum);

}  // namespace litecache::engine
