// Chooses tokens from logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/logits.h"
#include "litecache/engine.h"
#include "ops/sample/exponential_race.h"

namespace litecache::engine {

// A temperature below this counts as greedy.
inline constexpr double kGreedyTemperature = 1e-6;

// Memory that a sampling thread keeps between tokens.
struct SamplerScratch {
  std::vector<float> row;
  std::vector<float> weights;
  std::vector<double> block_sums;
  std::vector<Candidate> candidates;
  std::vector<double> candidate_weights;
  std::vector<uint32_t> allowed;  // one bit per token, for SampleAllowed
};

// The tokens that a sample has seen, for penalties.
class TokenHistory {
 public:
  struct Entry {
    int32_t token = 0;
    int32_t generated = 0;  // times in the answer; 0: in the prompt only
  };
  void AddPrompt(std::span<const int32_t> prompt);
  void AddGenerated(int32_t token);
  // Undoes the last AddGenerated() of the answer.
  void RemoveGenerated(int32_t token);
  // Distinct tokens in order of first appearance.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& Find(int32_t token);

  std::vector<Entry> entries_;
  size_t prompt_entries_ = 0;  // those that the prompt has made
  std::unordered_map<int32_t, size_t> index_;
};

// Draws the tokens of one sample. The order is that of vLLM and Transformers:
//   logit_bias; repetition, frequency and presence penalty; temperature; top-k; top-p; min-p.
// The repetition penalty considers prompt and answer, the other two only the answer. top-k keeps
// exactly k tokens, top-p the fewest most likely tokens that reach p of the mass that top-k left,
// min-p those at least min_p times as likely as the most likely one. Among equal logits the lower
// token comes first. Biases of the same token add up. The draw is an exponential race
// (ops/sample/exponential_race.h), so logits that differ a little draw the same token nearly
// always.
class Sampler {
 public:
  // `params` must be valid. seed and sample (its index in the request) select the random stream.
  Sampler(const SamplingParams& params, uint64_t seed, int sample, std::span<const int32_t> prompt);

  // The next token for logits [vocab], which must be finite; tokens must be sampled in order. The
  // draw depends only on (seed, sample, number of tokens before).
  int32_t Sample(std::span<const float> logits, SamplerScratch* scratch);
  // The same among the tokens whose bits are set in scratch->allowed (ceil(vocab / 32) words): the
  // other tokens' logits are set to minus infinity first. Throws Error if no token is left.
  int32_t SampleAllowed(std::span<const float> logits, SamplerScratch* scratch);

  // For callers that choose the next token elsewhere with the same arithmetic: the inputs of the
  // choice besides the logits, and Accept() for the chosen token.
  const SamplingParams& params() const { return params_; }  // at most one bias per token
  ops::RaceDraw NextDraw() const;
  std::span<const TokenHistory::Entry> seen() const { return history_.entries(); }
  void Accept(int32_t token) { Count(token); }
  // As if the last token, which this one is, had not been chosen.
  void TakeBack(int32_t token);

 private:
  bool HasPenalties() const;
  std::span<const float> Adjust(std::span<const float> logits, SamplerScratch* scratch) const;
  void Penalize(std::vector<float>* row) const;
  int32_t Choose(std::span<const float> row, SamplerScratch* scratch) const;
  void Count(int32_t token);
  int32_t Draw(std::span<const float> row, SamplerScratch* scratch) const;
  // Fills scratch->candidates with the tokens that top-k, top-p and min-p keep.
  void Filter(std::span<const float> row, SamplerScratch* scratch) const;
  void SelectNucleus(std::span<const float> row, SamplerScratch* scratch) const;

  SamplingParams params_;
  uint64_t seed_;
  uint32_t sample_;
  uint64_t drawn_ = 0;
  TokenHistory history_;  // empty without penalties
};

}  // namespace litecache::engine
