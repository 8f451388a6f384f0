#include "eval/ruler/fit.h"

#include <algorithm>
#include <utility>

namespace litecache::eval {

SizeGuess GuessSizes(const TaskBuilder& builder, BuildRequest request,
                     const TokenCounter& counter) {
  // Units have one to some forty tokens; a few hundred of them average out the differences.
  constexpr int64_t kUnits = 400;
  const int64_t low = builder.MinSize(request);
  const int64_t high = std::min(low + kUnits, builder.MaxSize(request));
  const auto tokens = [&](int64_t size) {
    request.size = size;
    return static_cast<double>(counter(builder.Build(request).text));
  };
  SizeGuess guess;
  const double at_low = tokens(low);
  guess.tokens_per_unit =
      (tokens(high) - at_low) / static_cast<double>(std::max<int64_t>(high - low, 1));
  guess.tokens_at_zero = at_low - guess.tokens_per_unit * static_cast<double>(low);
  return guess;
}

FittedDraft Fit(const TaskBuilder& builder, BuildRequest request, int64_t budget,
                const SizeGuess& guess, const TokenCounter& counter) {
  const int64_t low = builder.MinSize(request);
  const int64_t high = builder.MaxSize(request);
  FittedDraft fitted;
  int64_t tokens_of_last = 0;
  const auto tokens = [&](int64_t size) {
    request.size = size;
    Draft draft = builder.Build(request);
    tokens_of_last = counter(draft.text);
    if (tokens_of_last <= budget && size > fitted.size) {
      fitted.draft = std::move(draft);
      fitted.size = size;
      fitted.tokens = tokens_of_last;
    }
    return tokens_of_last;
  };
  LargestFit(low, high, budget, guess, tokens);
  if (fitted.size == 0) fitted.tokens = tokens(low);
  fitted.exhausted = fitted.size == high;
  return fitted;
}

}  // namespace litecache::eval
