#include "eval/longbench/truncate.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace litecache::eval {

TruncatedText TruncateMiddle(std::string_view text, int64_t budget,
                             const tokenizer::Tokenizer& tokenizer) {
  if (budget < 2) throw InvalidArgument("a prompt of {} tokens has no two halves", budget);
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens <= budget) return {std::string(text), tokens, false};
  const std::span all(ids);
  int64_t half = budget / 2;
  while (true) {
    const auto kept = static_cast<size_t>(half);
    std::string joined = tokenizer.Decode(all.first(kept), true);
    joined += tokenizer.Decode(all.last(kept), true);
    const auto left = static_cast<int64_t>(tokenizer.Encode(joined).size());
    if (left <= budget || half == 0) return {std::move(joined), left, true};
    // Joining within words costs a token or two.
    half = std::max<int64_t>(half - (left - budget + 1) / 2, 0);
  }
}

}  // namespace litecache::eval
