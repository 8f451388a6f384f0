#include "engine/request.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "kv/tiers.h"
#include "tokenizer/utf8.h"

namespace litecache {
namespace {

void CheckRange(std::string_view field, double value, double low, double high) {
  if (!(value >= low && value <= high)) {  // also rejects NaN
    throw InvalidArgument("{} = {} is not between {} and {}", field, value, low, high);
  }
}

}  // namespace

void SamplingParams::Validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    throw InvalidArgument("temperature = {} is not a number >= 0 (0 is greedy)", temperature);
  }
  if (top_k < 0) throw InvalidArgument("top_k = {} is not >= 0 (0 turns it off)", top_k);
  if (!(top_p > 0 && top_p <= 1)) {
    throw InvalidArgument("top_p = {} is not above 0 and at most 1 (1 turns it off)", top_p);
  }
  CheckRange("min_p", min_p, 0, 1);
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    throw InvalidArgument("repetition_penalty = {} is not a number > 0 (1 turns it off)",
                          repetition_penalty);
  }
  CheckRange("presence_penalty", presence_penalty, -2, 2);
  CheckRange("frequency_penalty", frequency_penalty, -2, 2);
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0) throw InvalidArgument("logit_bias: {} is not a token id", token);
    CheckRange("logit_bias", bias, -100, 100);
  }
}

namespace engine {

void CheckRequest(const Request& request, const RequestLimits& limits) {
  const auto check_id = [&](std::string_view field, int64_t token) {
    if (token < 0 || token >= limits.vocab) {
      throw InvalidArgument("{}: token id {} is outside the model's vocabulary of {}", field, token,
                            limits.vocab);
    }
  };
  if (request.prompt.empty()) {
    throw InvalidArgument("the prompt is empty: give at least one token");
  }
  for (int32_t token : request.prompt) check_id("prompt", token);
  request.sampling.Validate();
  for (const auto& [token, bias] : request.sampling.logit_bias) check_id("logit_bias", token);
  for (int32_t token : request.stop_token_ids) check_id("stop_token_ids", token);
  if (request.max_tokens < 0) {
    throw InvalidArgument("max_tokens = {} is not >= 0 (0 is up to the context's end)",
                          request.max_tokens);
  }
  if (request.min_tokens < 0 ||
      (request.max_tokens > 0 && request.min_tokens > request.max_tokens)) {
    throw InvalidArgument("min_tokens = {} is not between 0 and max_tokens ({})",
                          request.min_tokens, request.max_tokens);
  }
  for (const std::vector<int32_t>& word : request.bad_words) {
    if (word.empty()) throw InvalidArgument("bad_words: a word has no tokens");
    for (int32_t token : word) check_id("bad_words", token);
  }
  if (request.n < 1 || request.n > limits.max_batch) {
    throw InvalidArgument("n = {} samples is not between 1 and the engine's batch of {}", request.n,
                          limits.max_batch);
  }
  for (const auto& [name, k] : {std::pair("logprobs", request.logprobs),
                                std::pair("prompt_logprobs", request.prompt_logprobs)}) {
    if (k < -1 || k > limits.vocab) {
      throw InvalidArgument("{} = {} is not between -1 (none) and the vocabulary of {}", name, k,
                            limits.vocab);
    }
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) throw InvalidArgument("a stop string is empty");
    if (!tokenizer::IsValidUtf8(stop)) throw InvalidArgument("a stop string is not valid UTF-8");
  }
  if (!request.stop.empty() && !limits.has_tokenizer) {
    throw InvalidArgument("stop strings need a tokenizer, and this model has none");
  }
}

KvCost WorstCase(const kv::Cache& cache, int64_t prompt, int64_t max_tokens) {
  const int64_t rows = prompt + std::max<int64_t>(max_tokens - 1, 0);
  return {cache.BytesFor(rows), cache.ForkBytesFor(prompt, rows)};
}

int64_t LargestContext(const KvLimits& budget, int64_t context, int64_t prompt, int64_t n) {
  // The cost grows with the length: bisect for the last length that fits.
  int64_t fits = 0, low = 1, high = context;
  while (low <= high) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t shared = std::min(prompt, middle - 1);
    if (WorstCase(*budget.cache, shared, middle - shared).Total(n).FitsIn(budget.bytes)) {
      fits = middle;
      low = middle + 1;
    } else {
      high = middle - 1;
    }
  }
  return fits;
}

int64_t ResolveMaxTokens(const Request& request, const RequestLimits& limits,
                         const KvLimits& budget) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (!request.generate && prompt <= LargestContext(budget, limits.context, prompt, request.n)) {
    return 0;
  }
  if (prompt >= limits.context) {
    throw CapacityError(
        "the prompt has {} tokens, but prompt and answer together can have at most {} tokens: "
        "shorten the prompt to {} tokens or less",
        prompt, limits.context, limits.context - 1);
  }
  if (request.max_tokens > limits.context - prompt) {
    throw CapacityError(
        "prompt ({} tokens) and max_tokens ({}) together exceed the context of {} tokens: ask "
        "for at most {} tokens",
        prompt, request.max_tokens, limits.context, limits.context - prompt);
  }
  const int64_t largest = LargestContext(budget, limits.context, prompt, request.n);
  const int64_t wanted = prompt + std::max<int64_t>(request.max_tokens, 1);
  if (wanted > largest) {
    const kv::TierBytes bytes = WorstCase(*budget.cache, prompt, wanted - prompt).Total(request.n);
    throw CapacityError(
        "prompt ({} tokens) and answer ({}){} need {} of KV cache, but its budget is {}: at most "
        "{} tokens of context fit; shorten the request or give the engine more memory",
        prompt, wanted - prompt,
        request.n > 1 ? fmt::format(" with {} samples", request.n) : std::string(),
        kv::FormatTiers(bytes), kv::FormatTiers(budget.bytes), largest);
  }
  return request.max_tokens > 0 ? request.max_tokens : largest - prompt;
}

}  // namespace engine
}  // namespace litecache
