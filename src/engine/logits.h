// Functions over one row of logits [vocab].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "litecache/engine.h"

namespace litecache {
class ThreadPool;
}

namespace litecache::engine {

// Index of the largest value, the lowest among equals. The row must be finite and not empty.
int32_t ArgMax(std::span<const float> row);
float Max(std::span<const float> row);
bool AllFinite(std::span<const float> row);

// Writes exp((row[i] - max) * scale) to weights, and their sums over blocks of kWeightBlock
// entries; returns the total. Exponentials are float (relative error below 3e-7), sums are double:
// a logit's own rounding, 1e-6 at 20, is coarser. max is the row's largest value, scale > 0.
inline constexpr size_t kWeightBlock = 1024;
double Weights(std::span<const float> row, float max, float scale, std::span<float> weights,
               std::vector<double>* block_sums);

// log(sum(exp(row))).
double LogSumExp(std::span<const float> row);

struct Candidate {
  float logit = 0;
  int32_t token = 0;
};
// The larger logit comes first; among equals, the lower token.
inline bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}
// The k largest values, sorted, the lower token first among equals. One pass in O(vocab) on
// average, without sorting the row.
void SelectTop(std::span<const float> row, size_t k, std::vector<Candidate>* out);

// Log-probabilities in the full softmax of the raw logits: a token's, and the k most likely ones.
TokenLogprob LogprobOf(std::span<const float> row, int32_t token, double log_sum);
std::vector<TokenLogprob> TopLogprobs(std::span<const float> row, size_t k, double log_sum);

// What the model thinks of tokens that are given: row i of logits [rows, vocab] is what it says
// behind tokens[begin + i], and entry i of the result is tokens[begin + i + 1]'s (one entry less
// than rows where the last token has none behind it). top: how many of the most likely tokens to
// list; -1: none, and no ranks. The pool may be null. Throws Error where a row is not finite.
std::vector<PromptLogprob> LogprobsOfGiven(std::span<const int32_t> tokens, int64_t begin,
                                           int64_t rows, const float* logits, int64_t vocab,
                                           int top, ThreadPool* pool);

}  // namespace litecache::engine
