#include "engine/draft/draft_length.h"

#include <algorithm>
#include <vector>

namespace litecache::engine {
namespace {

// Before anything is known: a match of two tokens says little, a long one much, and decode steps
// mostly choose as full attention does; what a draft model chooses is known after a few tokens.
constexpr std::array<double, 5> kPrior{0.35, 0.5, 0.65, 0.8, 0.85};
constexpr double kPriorWeight = 2;
// A result's weight after one more result, and after one more proposal that was not used: drafts
// that were given up are tried again after a few hundred tokens.
constexpr double kKeptByResult = 0.9, kKeptBySkip = 0.995;
// The gain that a draft must promise: estimates are noisy.
constexpr double kLeastGain = 1.03;

}  // namespace

void StepCosts::Measure(int64_t rows, double seconds) {
  if (rows < 1 || rows > kMostRows || !(seconds > 0)) return;
  double& known = seconds_[static_cast<size_t>(rows)];
  // Other work on the machine, and rows that are fetched for the first time, only make a step
  // longer.
  const double weight = seconds < known ? 0.5 : 0.2;
  known = known == 0 ? seconds : known + weight * (seconds - known);
}

double StepCosts::Of(int64_t rows) const {
  int64_t below = 0, above = 0, least = 0;
  for (int64_t i = 1; i <= kMostRows; ++i) {
    if (seconds_[static_cast<size_t>(i)] == 0) continue;
    if (least == 0) least = i;
    if (i <= rows) below = i;
    if (i >= rows && above == 0) above = i;
  }
  if (least == 0) return 0;
  const auto at = [this](int64_t i) { return seconds_[static_cast<size_t>(i)]; };
  if (below == 0) return at(least);
  if (above == 0) {
    return at(below) + row_ * at(least) * static_cast<double>(rows - below);
  }
  if (above == below) return at(below);
  const double share = static_cast<double>(rows - below) / static_cast<double>(above - below);
  return at(below) + share * (at(above) - at(below));
}

double Acceptance::Rate(int64_t match) const {
  const size_t i = Class(match);
  return (accepted_[i] + kPriorWeight * kPrior[i]) / (tried_[i] + kPriorWeight);
}

void Acceptance::Record(int64_t match, int64_t drafted, int64_t accepted) {
  const size_t i = Class(match);
  // A rejected token ends its draft, so those after it were not tried.
  tried_[i] = kKeptByResult * tried_[i] + static_cast<double>(accepted + (accepted < drafted));
  accepted_[i] = kKeptByResult * accepted_[i] + static_cast<double>(accepted);
}

void Acceptance::Skip(int64_t match) {
  const size_t i = Class(match);
  tried_[i] *= kKeptBySkip;
  accepted_[i] *= kKeptBySkip;
}

int64_t DraftLength(const StepCosts& costs, double rate, int64_t most, int64_t rows,
                    double* tokens) {
  const double alone = costs.Of(rows);
  if (alone <= 0) return 0;
  double best = kLeastGain * *tokens / alone, gained = 0, expected = 0, reached = 1;
  int64_t length = 0;
  for (int64_t k = 1; k <= most && rows + k <= StepCosts::kMostRows; ++k) {
    reached *= rate;
    expected += reached;
    const double speed = (*tokens + expected) / costs.Of(rows + k);
    if (speed <= best) continue;
    best = speed;
    length = k;
    gained = expected;
  }
  *tokens += gained;
  return length;
}

double DraftingCosts::Of(int64_t length, int64_t samples) const {
  const double other = others.Of(samples);
  return std::max(first.Of(samples), other) + static_cast<double>(length - 1) * other;
}

int64_t StepsLength(const StepCosts& costs, const DraftingCosts& drafting,
                    std::span<const double> rates, int64_t most, int64_t rows, double tokens) {
  const auto samples = static_cast<int64_t>(rates.size());
  const double alone = costs.Of(rows);
  if (samples == 0 || alone <= 0) return 0;
  if (drafting.others.Of(samples) <= 0) return std::min(most, kFewDrafts);
  std::vector<double> reached(rates.size(), 1);
  double best = kLeastGain * tokens / alone;
  int64_t length = 0;
  for (int64_t k = 1; k <= most && rows + samples * k <= StepCosts::kMostRows; ++k) {
    for (size_t i = 0; i < rates.size(); ++i) tokens += reached[i] *= rates[i];
    const double speed = tokens / (costs.Of(rows + samples * k) + drafting.Of(k, samples));
    if (speed <= best) continue;
    best = speed;
    length = k;
  }
  return length;
}

}  // namespace litecache::engine
