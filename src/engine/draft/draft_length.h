// How many tokens to draft: what steps cost, how often drafts are accepted, and what pays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace litecache::engine {

// Seconds that steps without prompt tokens take, by their rows.
class StepCosts {
 public:
  static constexpr int64_t kMostRows = 64;
  // What a row adds, as a share of the least step's time, where nothing has been measured. On two
  // CPU cores steps of 17 rows take 4 to 7 times as long as those of one. On an H200 with an 8B
  // model they should take 1.2 times as long at 8K tokens and 2.4 times at 131,000, by the times of
  // their attention.
  static constexpr double kRowOnCpu = 0.2, kRowOnGpu = 0.05;
  explicit StepCosts(double row = kRowOnCpu) : row_(row) {}

  void Measure(int64_t rows, double seconds);
  // Between measured numbers of rows it interpolates. 0: nothing has been measured.
  double Of(int64_t rows) const;

 private:
  double row_;
  std::array<double, kMostRows + 1> seconds_{};  // 0: not measured
};

// Of steps that draft, a token of each sample in a step: of a draft's first one, which may bring
// rows that the others only keep, or compute rows that a draft model lacks, and of those behind it.
struct DraftingCosts {
  explicit DraftingCosts(const StepCosts& unknown) : first(unknown), others(unknown) {}

  // Of a draft of `length` tokens for so many samples; 0: nothing has been measured.
  double Of(int64_t length, int64_t samples) const;

  StepCosts first, others;
};

// How often the drafts of one sample are accepted, by the length of the match that proposed them.
class Acceptance {
 public:
  // In the place of a match's length: steps have drafted.
  static constexpr int64_t kBySteps = 0;
  // The share of drafted tokens that are accepted if all before them were.
  double Rate(int64_t match) const;
  void Record(int64_t match, int64_t drafted, int64_t accepted);
  // A proposal was not used: old results count less, so that drafts are tried again.
  void Skip(int64_t match);

 private:
  static constexpr size_t kClasses = 5;
  static size_t Class(int64_t match) {
    return match == kBySteps ? 4 : match < 3 ? 0 : match < 5 ? 1 : match < 9 ? 2 : 3;
  }

  std::array<double, kClasses> tried_{}, accepted_{};
};

// The draft length from 0 to `most` that gives the most tokens per second, for a sample that joins
// a step of `rows` rows (its own first row included) which gives `tokens` tokens. *tokens grows by
// the accepted ones that are expected.
int64_t DraftLength(const StepCosts& costs, double rate, int64_t most, int64_t rows,
                    double* tokens);

// The same for samples whose drafts are made by steps of their own, a token of each in a step:
// rates [samples], of acceptance; drafting: what such steps take. All of them draft
// equally many tokens. The step that verifies has `rows` rows before drafts and gives `tokens`
// tokens. A few (kFewDrafts), if such steps have not been measured yet.
inline constexpr int64_t kFewDrafts = 2;
int64_t StepsLength(const StepCosts& costs, const DraftingCosts& drafting,
                    std::span<const double> rates, int64_t most, int64_t rows, double tokens);

}  // namespace litecache::engine
