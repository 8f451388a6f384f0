// Perplexity of long text under every configuration, and the divergence of its next-token
// distributions from those of full attention.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/run/context.h"
#include "eval/run/journal.h"

namespace litecache::eval {

struct PerplexityOptions {
  std::vector<int64_t> lengths;
  int64_t windows = 8;          // per length
  int64_t decode_tokens = 512;  // scored at the end of each, fed one at a time
  std::vector<int32_t> prefix;  // begins every window, such as the begin-of-text token
  std::vector<int32_t> text;    // the source of all windows
  // Bytes for full attention's logits at a time; windows beyond that run in further rounds.
  uint64_t logit_bytes = uint64_t{1} << 30;
};

// The end of window `index` in a text of `tokens` tokens: windows are spread over the text, those
// with the same index end at the same token whatever their length, and adding windows does not move
// earlier ones. `longest`: tokens of text in the longest possible window.
int64_t WindowEnd(int64_t index, int64_t tokens, int64_t longest);

// Throws InvalidArgument for a length that does not exceed decode_tokens, or that exceeds the text.
void CheckPerplexity(const RunContext& context, const PerplexityOptions& options);

// Runs policy full, which must be one of the configurations, first: the others are compared with
// it. Stops early when context.interrupted() returns true. Throws what CheckPerplexity, loading and
// the journal throw.
void RunPerplexity(const RunContext& context, const PerplexityOptions& options, Journal& journal);

}  // namespace litecache::eval
