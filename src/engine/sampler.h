// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/logits.h"
#include "litecache/engine.h"

namespace litecache::engine {

// A temperature below this counts as greedy.
inline constexpr double kGreedyTemperature = 1e-6;

// Memory a sampling thread keeps between tokens.
struct SamplerScratch {
  std::vector<float> row;
  std::vector<float> weights;
  std::vector<double> block_sums;
  std::vector<Candidate> candidates;
  std::vector<double> candidate_weights;
  std::vector<uint32_t> allowed;  // bits of tokens, for SampleAllowed
};

// Tokens a sample has seen, for penalties.
class TokenHistory {
 public:
  struct Entry {
    int32_t token = 0;
    int32_t generated = 0;  // times in the answer; 0: in the prompt only
  };
  void AddPrompt(std::span<const int32_t> prompt);
  void AddGenerated(int32_t token);
  // Distinct tokens in order of first appearance.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& Find(int32_t token);

  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> index_;
};

// Draws the tokens of one sample. The order is that of vLLM and Transformers:
//   logit_bias; repetition, frequency and presence penalty; temperature; top-k; top-p; min-p.
// Repetition penalty looks at prompt and answer, the other two at the answer alone. top-k keeps
// exactly k tokens, top-p the fewest most likely tokens that reach p of what top-k left, min-p
// those at least min_p times as likely as the most likely one; of equal logits the lower token
// comes first. A token's biases add up.
class Sampler {
 public:
  // `params` is valid. seed and sample (its index within the request) name the random stream.
  Sampler(const SamplingParams& params, uint64_t seed, int sample, std::span<const int32_t> prompt);

  // The next token for logits [vocab], which are finite; tokens must be sampled in their order.
  // The draw depends on (seed, sample, number of tokens before) alone.
  int32_t Sample(std::span<const float> logits, SamplerScratch* scratch);
  // The same among the tokens whose bits scratch->allowed (ceil(vocab / 32) words) has: the others'
  // logits are minus infinity before anything else looks at them. Throws Error where none is left.
  int32_t SampleAllowed(std::span<const float> logits, SamplerScratch* scratch);

  // For who chooses the next token elsewhere with the same arithmetic: what it depends on beside
  // the logits, and the token chosen.
  const SamplingParams& params() const { return params_; }  // a token has one bias at most
  double NextUniform() const;
  std::span<const TokenHistory::Entry> seen() const { return history_.entries(); }
  void Accept(int32_t token) { Count(token); }

 private:
  bool HasPenalties() const;
  std::span<const float> Adjust(std::span<const float> logits, SamplerScratch* scratch) const;
  void Penalize(std::vector<float>* row) const;
  int32_t Choose(std::span<const float> row, SamplerScratch* scratch) const;
  void Count(int32_t token);
  int32_t Draw(std::span<const float> row, SamplerScratch* scratch) const;
  int32_t DrawFromAll(std::span<const float> row, double uniform, SamplerScratch* scratch) const;
  // Fills scratch->candidates with what top-k, top-p and min-p leave.
  void Filter(std::span<const float> row, SamplerScratch* scratch) const;
  void SelectNucleus(std::span<const float> row, SamplerScratch* scratch) const;

  SamplingParams params_;
  uint64_t seed_;
  uint32_t sample_;
  uint64_t drawn_ = 0;
  TokenHistory history_;  // empty without penalties
};

}  // namespace litecache::engine
