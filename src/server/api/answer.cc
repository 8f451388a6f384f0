#include "server/api/answer.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/error.h"

namespace litecache::server {
namespace {

// Begins with the words of OpenAI's servers and vLLM's, by which clients such as litellm recognize
// that a conversation has to be shortened.
std::string TooLong(Engine& engine, std::string_view why) {
  return fmt::format("this model's maximum context length is {} tokens: {}",
                     engine.memory_plan().largest_context, why);
}

std::shared_ptr<RequestHandle> Submit(Engine& engine, const GenerationJob& job, Request request) {
  if (job.explicit_max_tokens) return engine.Submit(std::move(request));
  try {
    return engine.Submit(request);
  } catch (const CapacityError&) {
    // The client did not ask for the default length: what the memory holds is enough.
    request.max_tokens = 0;
    return engine.Submit(std::move(request));
  }
}

}  // namespace

SubmittedRequest SubmitRequest(Engine& engine, const GenerationJob& job, Request request) {
  try {
    return {Submit(engine, job, std::move(request))};
  } catch (const CapacityError& error) {
    throw CapacityError("{}", TooLong(engine, error.what()));
  }
}

Usage UsageOf(const std::vector<SubmittedRequest>& requests) {
  Usage usage;
  for (const SubmittedRequest& request : requests) {
    const RequestStats stats = request.handle->Stats();
    usage.prompt_tokens += stats.prompt_tokens;
    usage.cached_tokens += stats.cached_tokens;
    usage.generated_tokens += stats.generated_tokens;
    usage.prefill_seconds = std::max(usage.prefill_seconds, stats.prefill_seconds);
    usage.decode_seconds = std::max(usage.decode_seconds, stats.decode_seconds);
    usage.drafts += stats.drafts;
  }
  return usage;
}

std::string NewId(std::string_view prefix) {
  // Ids identify answers in logs; they are not secrets.
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, random(), random() & 0xffffffffu);
}

const char* FinishName(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

Json UsageJson(const Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.generated_tokens},
               {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens >= 0) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  return json;
}

Json TimingsJson(const Usage& usage) {
  Json timings = {{"cache_n", usage.cached_tokens}};
  const auto add = [&](const std::string& name, int64_t tokens, double seconds) {
    const auto count = static_cast<double>(tokens);
    timings[name + "_n"] = tokens;
    timings[name + "_ms"] = seconds * 1e3;
    timings[name + "_per_token_ms"] = tokens > 0 ? seconds * 1e3 / count : 0;
    timings[name + "_per_second"] = seconds > 0 ? count / seconds : 0;
  };
  add("prompt", usage.prompt_tokens - usage.cached_tokens, usage.prefill_seconds);
  add("predicted", usage.generated_tokens, usage.decode_seconds);
  if (usage.drafts.passes > 0) {
    timings["draft_n"] = usage.drafts.drafted;
    timings["draft_n_accepted"] = usage.drafts.accepted;
  }
  return timings;
}

Json ProgressJson(const Progress& progress) {
  return {{"total", progress.total},
          {"cache", progress.cached},
          {"processed", progress.processed},
          {"time_ms", progress.seconds * 1e3}};
}

void AppendEvent(const Json& data, std::string* out) {
  *out += "data: ";
  *out += Dump(data);
  *out += "\n\n";
}

void CheckPromptSize(size_t tokens, const ServedModel& model) {
  const int64_t limit = model.limits.max_prompt;
  if (limit > 0 && static_cast<int64_t>(tokens) > limit) {
    throw ApiError(
        400, "invalid_request_error", "context_length_exceeded", "",
        fmt::format("the prompt has {} tokens, and this server takes at most {}", tokens, limit));
  }
}

size_t MostPromptTokens(size_t bytes, const ServedModel& model) {
  int64_t limit = model.engine->memory_plan().largest_context;
  if (model.limits.max_prompt > 0) limit = std::min(limit, model.limits.max_prompt);
  const auto most = static_cast<size_t>(limit);
  // Normalizers may shorten a text, but never to less than a quarter.
  const size_t longest = 4 * std::max<size_t>(model.tokenizer().longest_token(), 16);
  if (bytes / longest > most) {
    throw ApiError(
        400, "invalid_request_error", "context_length_exceeded", "",
        TooLong(*model.engine, fmt::format("the prompt has {} bytes, which cannot be less than {} "
                                           "tokens, the most that this server takes",
                                           bytes, most)));
  }
  return 4 * most + 1024;
}

std::vector<int32_t> EncodePrompt(size_t bytes, const ServedModel& model,
                                  const std::function<std::vector<int32_t>(size_t most)>& encode) {
  const size_t most = MostPromptTokens(bytes, model);
  try {
    return encode(most);
  } catch (const CapacityError& error) {
    throw CapacityError("{}", TooLong(*model.engine, error.what()));
  }
}

int64_t AnswerBytes(const GenerationJob& job) {
  // Tokens wait in the engine until the client has taken the earlier ones. An answer sent in one
  // piece is built as JSON: an object, its field names and an array of bytes per log-probability.
  constexpr int64_t kToken = 64, kLogprob = 16, kJsonLogprob = 600;
  int64_t bytes = 0;
  for (const Request& request : job.requests) {
    const int64_t listed = request.logprobs < 0 ? 0 : 1 + request.logprobs;
    const int64_t each = kToken + listed * (job.stream.stream ? kLogprob : kJsonLogprob);
    bytes += request.n * std::min<int64_t>(request.max_tokens, int64_t{1} << 31) * each;
    if (request.prompt_logprobs < 0) continue;
    const int64_t of_prompt =
        (1 + request.prompt_logprobs) * (job.stream.stream ? kLogprob : kJsonLogprob);
    bytes += request.n * static_cast<int64_t>(request.prompt.size()) * of_prompt;
  }
  return bytes;
}

void SetMaxTokens(std::optional<int64_t> wanted, int64_t fallback, const ServedModel& model,
                  GenerationJob* job) {
  job->explicit_max_tokens = wanted.has_value();
  const int64_t limit = model.limits.max_tokens;
  if (limit > 0 && (fallback == 0 || fallback > limit)) fallback = limit;
  const int64_t context = model.engine->memory_plan().largest_context;
  for (Request& request : job->requests) {
    const int64_t left = context - static_cast<int64_t>(request.prompt.size());
    // The engine rejects a prompt that fills the context; its error gives the numbers.
    const int64_t most = left <= 0 ? 1 : fallback == 0 ? left : std::min(fallback, left);
    request.max_tokens = wanted ? *wanted : most;
    request.generate = request.max_tokens > 0;
  }
}

}  // namespace litecache::server
