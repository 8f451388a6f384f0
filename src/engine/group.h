// A request inside the engine. Only the engine's thread accesses it, except for Channel and
// ScoreJob, which have locks of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/channel.h"
#include "engine/draft/sample_drafts.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/score_job.h"
#include "engine/stop_matcher.h"
#include "kv/cache.h"
#include "litecache/engine.h"
#include "litecache/token_constraint.h"

namespace litecache::engine {

using Clock = std::chrono::steady_clock;

inline double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Turns one sample's tokens into text once it is final (tokenizer::StreamDecoder).
class TokenText {
 public:
  virtual ~TokenText() = default;
  virtual std::string Add(int32_t token) = 0;
  virtual std::string Flush() = 0;
};
using TokenTextFactory = std::function<std::unique_ptr<TokenText>(const Request& request)>;

// One sample of a request, from the moment its prompt is in the cache.
struct Sample {
  int index = 0;
  kv::SequenceId sequence = 0;
  bool live = true;
  int32_t last_token = 0;  // sampled, not yet in the cache
  int64_t generated = 0;
  Sampler sampler;
  StopMatcher stops;
  std::unique_ptr<TokenText> text;              // null without a tokenizer
  std::unique_ptr<TokenConstraint> constraint;  // null without one
  // Its mask is computed; otherwise the sample takes no part in steps.
  bool prepared = true;
  std::vector<int32_t> tokens;                     // generated ones, if anything needs them
  std::unique_ptr<SampleDrafts> drafts = nullptr;  // null without drafts

  // The tokens that the next step computes behind last_token.
  std::span<const int32_t> draft() const {
    return drafts != nullptr ? std::span<const int32_t>(drafts->next) : std::span<const int32_t>();
  }
};

struct PrefixWait;  // prefix/prefix_reuse.h

// n samples of one prompt, which share its pages; or a score job, which has no samples.
struct Group {
  Request request;
  int64_t max_tokens = 0;  // with 0 resolved
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;  // sorted, the model's eos ids included unless ignored
  std::shared_ptr<Channel> channel;
  std::shared_ptr<ScoreJob> score;  // null unless a score job; replaces the fields above

  KvCost cost;
  KvCost provided;    // the same for at most kTokensProvided tokens of an answer
  uint64_t turn = 0;  // its place in the scheduler's order
  bool admitted = false;
  kv::SequenceId prompt_sequence = 0;  // while the prompt is processed; otherwise 0
  int64_t prefilled = 0;               // prompt tokens in the cache
  // The prompt's in the draft model's cache until the samples start; 0: none, and nothing is
  // drafted for them. draft_bytes: what each of them may take there.
  kv::SequenceId draft_sequence = 0;
  kv::TierBytes draft_bytes;
  // Prompt lengths, ascending and above `prefilled`, that chunks end at, because the prompt is kept
  // as a prefix there (PrefixReuse).
  std::vector<int64_t> keep_at;
  // Set while rows of its prompt are read from disk or computed by another request; the request
  // takes no part in steps until then.
  std::shared_ptr<PrefixWait> prefix_wait;
  // That of future samples; null without one. The step that ends the prompt waits for its mask.
  std::unique_ptr<TokenConstraint> constraint;
  bool prepared = true;
  std::vector<Sampler> samplers;  // of future samples: made for the step that ends the prompt
  std::vector<Sample> samples;    // filled when the prompt is done
  bool ended = false;

  Clock::time_point submitted;
  std::optional<Clock::time_point> started;  // when its first step began
  std::optional<Clock::time_point> first_token;

  const std::vector<int32_t>& prompt() const {
    return score != nullptr ? score->tokens() : request.prompt;
  }
  uint64_t client() const { return score != nullptr ? 0 : request.client; }
  // Every row of the prompt needs logits.
  bool all_logits() const { return score != nullptr || request.prompt_logprobs >= 0; }
  int64_t prompt_size() const { return static_cast<int64_t>(prompt().size()); }
  bool prefilling() const { return prefilled < prompt_size(); }
  // The number of prompt tokens that are processed in chunks.
  int64_t decodes_from() const { return score != nullptr ? score->decode_from() : prompt_size(); }
  // The number of sequences that it holds, or will hold once its prompt is done.
  int64_t width() const {
    if (score != nullptr) return 1;
    if (samples.empty()) return request.n;
    int64_t live = 0;
    for (const Sample& sample : samples) live += sample.live ? 1 : 0;
    return live;
  }
  kv::TierBytes reserved() const { return cost.Total(width()); }
  bool cancelled() const { return score != nullptr ? score->cancelled() : channel->cancelled(); }
};

}  // namespace litecache::engine
