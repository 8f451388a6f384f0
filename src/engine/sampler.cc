#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "ops/sample/exponential_race_cpu.h"

namespace litecache::engine {

TokenHistory::Entry& TokenHistory::Find(int32_t token) {
  const auto [found, added] = index_.try_emplace(token, entries_.size());
  if (added) entries_.push_back({token, 0});
  return entries_[found->second];
}

void TokenHistory::AddPrompt(std::span<const int32_t> prompt) {
  for (int32_t token : prompt) Find(token);
  prompt_entries_ = entries_.size();
}

void TokenHistory::AddGenerated(int32_t token) { ++Find(token).generated; }

void TokenHistory::RemoveGenerated(int32_t token) {
  const auto found = index_.find(token);
  if (--entries_[found->second].generated > 0 || found->second < prompt_entries_) return;
  // It was the token's first appearance, so nothing has appeared since.
  entries_.pop_back();
  index_.erase(found);
}

namespace {

// Merges the biases of each token into their sum.
void MergeBiases(std::vector<std::pair<int32_t, float>>* biases) {
  std::stable_sort(biases->begin(), biases->end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  size_t kept = 0;
  for (size_t i = 0; i < biases->size(); ++i) {
    if (kept > 0 && (*biases)[kept - 1].first == (*biases)[i].first) {
      (*biases)[kept - 1].second += (*biases)[i].second;
    } else {
      (*biases)[kept++] = (*biases)[i];
    }
  }
  biases->resize(kept);
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, int sample,
                 std::span<const int32_t> prompt)
    : params_(params), seed_(seed), sample_(static_cast<uint32_t>(sample)) {
  MergeBiases(&params_.logit_bias);
  if (params_.repetition_penalty != 1.0) history_.AddPrompt(prompt);
}

ops::RaceDraw Sampler::NextDraw() const { return {seed_, drawn_, sample_}; }

bool Sampler::HasPenalties() const {
  return params_.repetition_penalty != 1.0 || params_.presence_penalty != 0.0 ||
         params_.frequency_penalty != 0.0;
}

int32_t Sampler::Sample(std::span<const float> logits, SamplerScratch* scratch) {
  const int32_t token = Choose(Adjust(logits, scratch), scratch);
  Count(token);
  return token;
}

int32_t Sampler::SampleAllowed(std::span<const float> logits, SamplerScratch* scratch) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<float>& row = scratch->row;
  row.assign(logits.size(), kNever);
  bool some = false;
  for (size_t word = 0; word < scratch->allowed.size(); ++word) {
    for (uint32_t bits = scratch->allowed[word]; bits != 0; bits &= bits - 1) {
      const size_t token = word * 32 + static_cast<size_t>(std::countr_zero(bits));
      if (token >= row.size()) break;
      row[token] = logits[token];
      some = true;
    }
  }
  if (!some) {
    throw Error(
        "no token can continue the answer: the vocabulary lacks what its format, min_tokens and "
        "bad_words leave");
  }
  Penalize(&row);
  const int32_t token = Choose(row, scratch);
  Count(token);
  return token;
}

int32_t Sampler::Choose(std::span<const float> row, SamplerScratch* scratch) const {
  return params_.temperature < kGreedyTemperature ? ArgMax(row) : Draw(row, scratch);
}

void Sampler::Count(int32_t token) {
  ++drawn_;
  if (HasPenalties()) history_.AddGenerated(token);
}

void Sampler::TakeBack(int32_t token) {
  --drawn_;
  if (HasPenalties()) history_.RemoveGenerated(token);
}

std::span<const float> Sampler::Adjust(std::span<const float> logits,
                                       SamplerScratch* scratch) const {
  if (params_.logit_bias.empty() && history_.entries().empty()) return logits;
  std::vector<float>& row = scratch->row;
  row.assign(logits.begin(), logits.end());
  Penalize(&row);
  return row;
}

void Sampler::Penalize(std::vector<float>* row) const {
  for (const auto& [token, bias] : params_.logit_bias) (*row)[static_cast<size_t>(token)] += bias;
  const auto repetition = static_cast<float>(params_.repetition_penalty);
  for (const auto& [token, generated] : history_.entries()) {
    float& logit = (*row)[static_cast<size_t>(token)];
    if (repetition != 1.0f) logit = logit > 0 ? logit / repetition : logit * repetition;
    logit -= static_cast<float>(params_.frequency_penalty * generated);
    if (generated > 0) logit -= static_cast<float>(params_.presence_penalty);
  }
}

int32_t Sampler::Draw(std::span<const float> row, SamplerScratch* scratch) const {
  const ops::RaceDraw draw = NextDraw();
  const bool top_k = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < row.size();
  if (!top_k && params_.top_p >= 1.0 && params_.min_p <= 0.0) {
    return ops::cpu::DrawToken(row, ArgMax(row), static_cast<float>(1.0 / params_.temperature),
                               draw);
  }
  Filter(row, scratch);
  ops::FirstArrival first;
  for (size_t i = 0; i < scratch->candidates.size(); ++i) {
    const int32_t token = scratch->candidates[i].token;
    first.Take(ops::ExponentialOf(draw, token) / scratch->candidate_weights[i], token);
  }
  return first.token;
}

void Sampler::Filter(std::span<const float> row, SamplerScratch* scratch) const {
  std::vector<Candidate>& candidates = scratch->candidates;
  std::vector<double>& weights = scratch->candidate_weights;
  const bool top_k = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < row.size();
  const auto weigh = [&] {
    const float max = candidates.front().logit;
    weights.clear();
    for (const Candidate& candidate : candidates) {
      weights.push_back(std::exp((double{candidate.logit} - max) / params_.temperature));
    }
  };
  if (top_k) {
    SelectTop(row, static_cast<size_t>(params_.top_k), &candidates);
    weigh();
    if (params_.top_p < 1.0) {
      double total = 0, sum = 0;
      for (double weight : weights) total += weight;
      size_t kept = 0;
      while (kept < weights.size() && sum < params_.top_p * total) sum += weights[kept++];
      weights.resize(kept);
    }
  } else if (params_.top_p < 1.0) {
    SelectNucleus(row, scratch);
  } else {
    // min-p alone needs no sorting: one pass collects the tokens that reach the bar, lowered by a
    // rounding error; the exact comparison follows below.
    const float max = Max(row);
    const double bar = max + params_.temperature * std::log(params_.min_p);
    candidates.clear();
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] >= bar - 1e-3 * std::abs(bar)) {
        candidates.push_back({row[i], static_cast<int32_t>(i)});
      }
    }
    const auto first = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const Candidate& c) { return c.logit == max; });
    std::iter_swap(candidates.begin(), first);
    weigh();
  }
  if (params_.min_p > 0.0) {
    size_t kept = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] < params_.min_p * weights.front()) continue;
      candidates[kept] = candidates[i];
      weights[kept++] = weights[i];
    }
    weights.resize(kept);
  }
  candidates.resize(weights.size());
}

void Sampler::SelectNucleus(std::span<const float> row, SamplerScratch* scratch) const {
  // A histogram of the mass by distance from the best logit gives the nucleus's lower end, so that
  // only the nucleus is sorted: with 128K tokens this takes a tenth of the time of a full sort.
  constexpr int kBins = 256;
  constexpr float kBinsPerNat = 8;
  std::vector<double>& weights = scratch->candidate_weights;
  std::vector<Candidate>& candidates = scratch->candidates;
  scratch->weights.resize(row.size());
  const float max = Max(row);
  const auto scale = static_cast<float>(1.0 / params_.temperature);
  const double total = Weights(row, max, scale, scratch->weights, &scratch->block_sums);
  const auto bin_of = [&](float logit) {
    const float bin = (max - logit) * scale * kBinsPerNat;
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  };
  std::array<double, kBins> mass{};
  for (size_t i = 0; i < row.size(); ++i) {
    mass[static_cast<size_t>(bin_of(row[i]))] += double{scratch->weights[i]};
  }
  const double wanted = params_.top_p * total;
  int last = 0;
  for (double sum = mass[0]; sum < wanted && last < kBins - 1;)
    sum += mass[static_cast<size_t>(++last)];
  last = std::min(last + 1, kBins - 1);  // one more, because rounding may have cut off a token

  candidates.clear();
  for (size_t i = 0; i < row.size(); ++i) {
    if (bin_of(row[i]) <= last) candidates.push_back({row[i], static_cast<int32_t>(i)});
  }
  std::sort(candidates.begin(), candidates.end(), MoreLikely);
  weights.clear();
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    if (sum >= wanted) break;
    weights.push_back(std::exp((double{candidate.logit} - max) / params_.temperature));
    sum += weights.back();
  }
  candidates.resize(weights.size());
}

}  // namespace litecache::engine
