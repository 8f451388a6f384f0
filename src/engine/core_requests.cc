// Accepts requests and ends them.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "engine/core.h"
#include "engine/message_of.h"
#include "engine/random.h"

namespace litecache::engine {
namespace {

std::vector<int32_t> StopIds(const Request& request, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ids = request.stop_token_ids;
  if (!request.ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

std::shared_ptr<RequestHandle> Core::Submit(Request request) {
  CheckRequest(request, limits_);
  auto group = std::make_unique<Group>();
  group->max_tokens = ResolveMaxTokens(request, limits_, budget_);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  group->cost = WorstCase(*backend_.cache, prompt, group->max_tokens);
  group->provided =
      WorstCase(*backend_.cache, prompt, std::min(group->max_tokens, kTokensProvided));
  group->seed = request.sampling.seed ? *request.sampling.seed : RandomSeed();
  group->stop_ids = StopIds(request, backend_.eos_ids);
  group->channel =
      std::make_shared<Channel>(request.n, group->seed, static_cast<int64_t>(request.prompt.size()),
                                std::move(request.on_chunks));
  group->request = std::move(request);
  if (group->request.constraint != nullptr && group->request.generate) {
    group->constraint = group->request.constraint->Clone();
    group->prepared = false;
  }
  auto handle = std::make_shared<Handle>(group->channel, doorbell_);
  Enqueue(std::move(group));
  return handle;
}

ScoreResult Core::Score(ScoreRequest request,
                        const std::function<void(int64_t, int64_t)>& progress) {
  auto group = std::make_unique<Group>();
  auto job = std::make_shared<ScoreJob>(std::move(request), vocab_);
  const auto count = static_cast<int64_t>(job->tokens().size());
  const int64_t largest = LargestContext(budget_, options_.context, count, 1);
  if (count > largest) {
    throw CapacityError(
        "{} tokens to score, but the context is {} tokens and the memory for KV holds {}: score "
        "fewer tokens or give the engine more memory",
        count, options_.context, largest);
  }
  group->score = job;
  group->cost = group->provided = WorstCase(*backend_.cache, count, 0);
  Enqueue(std::move(group));
  return job->Wait(progress);
}

void Core::Enqueue(std::unique_ptr<Group> group) {
  group->submitted = Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (stop_) throw Error("the engine is shutting down");
    incoming_.push_back(std::move(group));
    ++stats_.waiting;
  }
  doorbell_->Ring();
}

void Core::KeepPrefix(const std::function<void()>& keep) {
  try {
    keep();
  } catch (...) {
    LogWarning("a prefix is not kept: {}", MessageOf(std::current_exception()));
  }
}

void Core::ReleaseSequence(Group* group, const Sample* sample, bool keep) {
  const kv::SequenceId sequence = sample != nullptr ? sample->sequence : group->prompt_sequence;
  if (sequence == 0) return;  // it was never created
  if (keep && prefixes_ != nullptr && prefixes_->Shares(*group)) {
    KeepPrefix([&] {
      prefixes_->Keep(sequence, group->prompt(),
                      sample != nullptr ? sample->tokens : std::span<const int32_t>());
    });
  }
  backend_.cache->Release(sequence);
  if (draft_model_ != nullptr) {
    draft_model_->Release(sample != nullptr ? sample->drafts->sequence : group->draft_sequence);
  }
}

void Core::EndSample(Group* group, Sample* sample) {
  sample->live = false;
  TruncateRejected(*group, *sample);  // a kept prefix must not hold rejected tokens
  ReleaseSequence(group, sample, /*keep=*/true);
  if (group->width() == 0) group->ended = true;
}

void Core::End(Group* group, FinishReason reason, const std::string& error) {
  if (group->ended) return;
  group->ended = true;
  if (group->admitted) {
    // Rows of a failed request must not be reused.
    const bool keep = reason != FinishReason::kError;
    // The prompt's sequence becomes the first sample's.
    if (group->samples.empty()) ReleaseSequence(group, nullptr, keep);
    for (const Sample& sample : group->samples) {
      if (sample.live) ReleaseSequence(group, &sample, keep);
    }
  }
  if (group->score != nullptr) {
    scored_.emplace_back(group->score, nullptr);
    if (reason != FinishReason::kLength) {
      scored_.back().second = std::make_exception_ptr(
          Error(reason == FinishReason::kCancelled ? "scoring was cancelled" : error));
    }
    return;
  }
  for (int i = 0; i < group->request.n; ++i) {
    Chunk chunk;
    chunk.sample = i;
    chunk.finish = reason;
    chunk.error = error;
    if (static_cast<size_t>(i) < group->samples.size()) {
      Sample& sample = group->samples[static_cast<size_t>(i)];
      if (!sample.live) continue;
      sample.live = false;
      if (sample.text != nullptr) {
        sample.stops.Add(sample.text->Flush(), &chunk.text);
        sample.stops.Flush(&chunk.text);
      }
    }
    outbox_.emplace_back(group->channel, std::move(chunk));
  }
}

}  // namespace litecache::engine
