#include "cli/collect.h"

#include "base/error.h"

namespace litecache::cli {
namespace {

constexpr double kWaitSeconds = 0.05;

void Add(Chunk chunk, SampleResult* sample) {
  sample->tokens.insert(sample->tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
  sample->text += chunk.text;
  if (chunk.logprob) {
    sample->logprobs.push_back(*chunk.logprob);
    sample->top_logprobs.push_back(std::move(chunk.top_logprobs));
  }
  if (chunk.finish != FinishReason::kNone) sample->finish = chunk.finish;
}

}  // namespace

RequestResult Collect(RequestHandle& handle, int samples,
                      const std::function<void(int, const std::string&)>& on_text,
                      const std::function<void()>& on_wait) {
  RequestResult result;
  result.samples.resize(static_cast<size_t>(samples));
  while (true) {
    bool timed_out = false;
    auto chunk = handle.NextFor(kWaitSeconds, &timed_out);
    on_wait();
    if (!chunk) {
      if (timed_out) continue;
      break;
    }
    if (chunk->finish == FinishReason::kError) throw Error(chunk->error);
    LC_CHECK(chunk->sample >= 0 && chunk->sample < samples);
    const int sample = chunk->sample;
    if (!chunk->text.empty()) on_text(sample, chunk->text);
    Add(std::move(*chunk), &result.samples[static_cast<size_t>(sample)]);
  }
  result.stats = handle.Stats();
  return result;
}

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

}  // namespace litecache::cli
