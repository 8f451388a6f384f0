// Builds the largest text of a task that fits a token budget.
#pragma once

#include "eval/ruler/search.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {

struct FittedDraft {
  Draft draft;
  int64_t size = 0;        // 0: even the smallest text does not fit, and `tokens` is its length
  int64_t tokens = 0;      // of the draft
  bool exhausted = false;  // the material is used up although a longer text would fit
};

// Extrapolates the token counts of two small texts. `request` provides seed, length and mode.
SizeGuess GuessSizes(const TaskBuilder& builder, BuildRequest request, const TokenCounter& counter);

FittedDraft Fit(const TaskBuilder& builder, BuildRequest request, int64_t budget,
                const SizeGuess& guess, const TokenCounter& counter);

}  // namespace litecache::eval
