#include "cli/stats.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include "base/units.h"

namespace litecache::cli {
namespace {

// Tokens per second, or 0 if no time was measured.
double Rate(int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// The first token of every sample counts as prefill.
int64_t DecodedTokens(const RequestResult& result) {
  int64_t tokens = 0;
  for (const auto& sample : result.samples) {
    tokens += std::max<int64_t>(static_cast<int64_t>(sample.tokens.size()) - 1, 0);
  }
  return tokens;
}

std::string WithRate(double rate) {
  return rate > 0 ? fmt::format(" at {:.{}f} tok/s", rate, rate < 100 ? 1 : 0) : "";
}

// Counts only the tokens that were computed.
double PrefillRate(const RequestStats& stats) {
  return Rate(stats.prompt_tokens - stats.cached_tokens, stats.prefill_seconds);
}

std::string Plural(int64_t count, const std::string& word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace

uint64_t PeakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

std::string Summary(const std::vector<RequestResult>& results, double seconds,
                    const MemoryUse& memory) {
  int64_t prompt_tokens = 0;
  int64_t generated = 0;
  DraftStats drafts;
  for (const auto& result : results) {
    drafts += result.stats.drafts;
    prompt_tokens += result.stats.prompt_tokens;
    generated += result.stats.generated_tokens;
  }
  std::string text;
  if (results.size() == 1) {
    const auto& stats = results[0].stats;
    text = fmt::format(
        "prompt {}{}{}{} | generated {}{}\n", Plural(prompt_tokens, "token"),
        stats.cached_tokens > 0 ? fmt::format(", {} of them known", stats.cached_tokens) : "",
        WithRate(PrefillRate(stats)),
        generated == 0  // interrupted while the prompt was processed
            ? ""
            : fmt::format(" | first token after {}",
                          FormatSeconds(stats.queue_seconds + stats.prefill_seconds)),
        Plural(generated, "token"),
        WithRate(Rate(DecodedTokens(results[0]), stats.decode_seconds)));
  } else {
    text = fmt::format("{} with {} | generated {}{} together, in {}\n",
                       Plural(static_cast<int64_t>(results.size()), "prompt"),
                       Plural(prompt_tokens, "token"), Plural(generated, "token"),
                       WithRate(Rate(generated, seconds)), FormatSeconds(seconds));
  }
  if (drafts.passes > 0) {
    text += fmt::format("drafted {} | accepted {} | {:.2f} tokens per pass\n",
                        Plural(drafts.drafted, "token"), drafts.accepted, drafts.tokens_per_pass());
  }
  return text +
         fmt::format("{} | peak memory {}\n", memory.kv.Text(), FormatBytes(memory.peak_bytes));
}

nlohmann::ordered_json StatsJson(const RequestResult& result, const SampleResult& sample,
                                 const MemoryUse& memory) {
  const RequestStats& stats = result.stats;
  nlohmann::ordered_json json = {
      {"prompt_tokens", stats.prompt_tokens},
      {"cached_tokens", stats.cached_tokens},
      {"generated_tokens", sample.tokens.size()},
      {"finish_reason", Name(sample.finish)},
      {"time_to_first_token_s", stats.queue_seconds + stats.prefill_seconds},
      {"queue_s", stats.queue_seconds},
      {"prefill_s", stats.prefill_seconds},
      {"decode_s", stats.decode_seconds},
      {"prefill_tokens_per_s", PrefillRate(stats)},
      {"decode_tokens_per_s", Rate(DecodedTokens(result), stats.decode_seconds)},
      {"seed", stats.seed},
      {"kv", memory.kv.Json()},
      {"peak_memory_bytes", memory.peak_bytes},
  };
  if (stats.drafts.passes > 0) {
    json["drafts"] = {{"drafted", stats.drafts.drafted},
                      {"accepted", stats.drafts.accepted},
                      {"passes", stats.drafts.passes},
                      {"draft_steps", stats.drafts.draft_steps},
                      {"tokens_per_pass", stats.drafts.tokens_per_pass()}};
  }
  return json;
}

}  // namespace litecache::cli
