// Checks a request before any work starts, and computes the memory that it may need.
#pragma once

#include <cstdint>

#include "kv/cache.h"
#include "litecache/engine.h"

namespace litecache::engine {

// The limits that a request is checked against.
struct RequestLimits {
  int64_t vocab = 0;
  int64_t context = 0;    // most tokens of a sequence
  int64_t max_batch = 0;  // most sequences that run together
  bool has_tokenizer = false;
};

// Throws InvalidArgument naming the field: empty prompt, ids outside the vocabulary, n, stop
// strings, sampling parameters.
void CheckRequest(const Request& request, const RequestLimits& limits);

// The KV memory that a request needs at most, if every sample runs to its last token. The last
// token of a sample is never fed back, so `prompt + max_tokens` tokens take one row less.
struct KvCost {
  kv::TierBytes first;  // one sample, the prompt included
  kv::TierBytes more;   // every further sample
  kv::TierBytes Total(int64_t samples) const {
    return samples < 1 ? kv::TierBytes{} : first + static_cast<uint64_t>(samples - 1) * more;
  }
};

// Tokens of an answer whose memory is allocated together with the prompt's, so that decode steps
// allocate nothing; a longer answer allocates more when it needs it. It is less than a request may
// ask for: without max_tokens an answer may continue to the context's end, but few do.
inline constexpr int64_t kTokensProvided = 4096;

KvCost WorstCase(const kv::Cache& cache, int64_t prompt, int64_t max_tokens);

// The cache's costs, which are constant, and its capacity, read once: these functions run on
// callers' threads, whereas the cache itself belongs to the engine's thread.
struct KvLimits {
  const kv::Cache* cache = nullptr;
  kv::TierBytes bytes;
};

// How many tokens each sample of the request may generate: request.max_tokens, or for 0 as many as
// the context and the KV budget allow. Throws CapacityError with the numbers and the largest
// context that fits if that many (or a single one) do not fit.
int64_t ResolveMaxTokens(const Request& request, const RequestLimits& limits,
                         const KvLimits& budget);

// The most tokens (prompt and answer) that n samples of a prompt can reach within the budget, at
// most `context`.
int64_t LargestContext(const KvLimits& budget, int64_t context, int64_t prompt, int64_t n);

}  // namespace litecache::engine
