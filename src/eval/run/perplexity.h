// Perplexity of long text under every configuration, and the distance of its next-token
// distributions from full attention's.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/run/context.h"
#include "eval/run/journal.h"

namespace litecache::eval {

struct PerplexityOptions {
  std::vector<int64_t> lengths;
  int64_t windows = 8;          // a length
  int64_t decode_tokens = 512;  // scored at the end of each, fed one at a time
  std::vector<int32_t> prefix;  // begins every window, such as the beginning-of-text token
  std::vector<int32_t> text;    // what windows are cut from
  // Full attention's logits kept at a time, in bytes; windows beyond it are done in further rounds.
  uint64_t logit_bytes = uint64_t{1} << 30;
};

// Where window `index` ends in a text of `tokens` tokens: windows are spread over the text, those
// of one index end at the same token whatever their length, and more of them leave the earlier ones
// where they are. `longest`: tokens of text the longest possible window takes.
int64_t WindowEnd(int64_t index, int64_t tokens, int64_t longest);

// Throws InvalidArgument for a length that is not longer than decode_tokens, or longer than the
// text.
void CheckPerplexity(const RunContext& context, const PerplexityOptions& options);

// Runs policy full first, which others are compared with: one of the configurations has it. Stops
// early when context.interrupted() says so. Throws what CheckPerplexity, loading and the journal
// throw.
void RunPerplexity(const RunContext& context, const PerplexityOptions& options, Journal& journal);

}  // namespace litecache::eval
