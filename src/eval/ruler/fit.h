// Builds the largest text of a task that fits a token budget.
#pragma once

#include "eval/ruler/search.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {

struct FittedDraft {
  Draft draft;
  int64_t size = 0;        // 0: not even the smallest text fits; `tokens` is what that one takes
  int64_t tokens = 0;      // of the draft
  bool exhausted = false;  // there is no material for a longer text, and a longer one would fit
};

// Token counts of two small texts, extrapolated. `request` tells seed, length and mode.
SizeGuess GuessSizes(const TaskBuilder& builder, BuildRequest request, const TokenCounter& counter);

FittedDraft Fit(const TaskBuilder& builder, BuildRequest request, int64_t budget,
                const SizeGuess& guess, const TokenCounter& counter);

}  // namespace litecache::eval
