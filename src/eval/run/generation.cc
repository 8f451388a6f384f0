#include "eval/run/generation.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "eval/run/progress.h"

namespace litecache::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Polling interval of the running requests; a step takes longer.
constexpr double kPollSeconds = 0.02;

struct Prompt {
  const Sample* sample = nullptr;
  std::vector<int32_t> tokens;
  std::string identity;  // what the result depends on, besides the configuration
};

std::string Identity(const Sample& sample, const std::vector<int32_t>& tokens) {
  std::string text(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t));
  text += fmt::format("|{}|{}", sample.max_new_tokens, sample.metric);
  for (const auto& reference : sample.references) text += "|" + reference;
  for (const auto& label : sample.classes) text += "|" + label;
  return text;
}

std::vector<Prompt> Encode(const RunContext& context, const std::vector<Sample>& samples,
                           const PromptEncoder& encode) {
  std::vector<Prompt> prompts(samples.size());
  ThreadPool pool(AvailableCores());
  pool.ParallelFor(static_cast<int64_t>(samples.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      prompts[i].sample = &samples[i];
      prompts[i].tokens = encode(samples[i]);
      prompts[i].identity = Identity(samples[i], prompts[i].tokens);
    }
  });
  for (const Prompt& prompt : prompts) {
    const int64_t needed =
        static_cast<int64_t>(prompt.tokens.size()) + prompt.sample->max_new_tokens;
    if (needed <= context.model.max_context) continue;
    throw InvalidArgument(
        "sample '{}': its prompt and answer take {} tokens ({} + {}), the model's context is {}",
        prompt.sample->id, needed, prompt.tokens.size(), prompt.sample->max_new_tokens,
        context.model.max_context);
  }
  return prompts;
}

struct Running {
  const Prompt* prompt = nullptr;
  std::string key;
  std::shared_ptr<RequestHandle> handle;
  std::shared_ptr<std::atomic<int64_t>> prefilled;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

std::string_view Name(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

// One configuration at one length.
class GroupRun {
 public:
  GroupRun(const RunContext& context, size_t configuration, int64_t length, const CostModel& cost,
           Journal& journal, Progress& progress)
      : context_(context),
        configuration_(configuration),
        length_(length),
        cost_(cost),
        journal_(journal),
        progress_(progress) {}

  // Returns the number of samples that failed.
  int64_t Run(const std::vector<Prompt>& prompts) {
    std::vector<std::pair<const Prompt*, std::string>> missing;
    for (const Prompt& prompt : prompts) {
      std::string key = MakeKey(context_, configuration_, prompt.identity);
      Prediction named;
      Describe(*prompt.sample, &named);
      journal_.CheckName(Journal::Name(named), key);
      if (journal_.Has(key)) {
        progress_.Correct(-Cost(prompt));
      } else {
        missing.emplace_back(&prompt, std::move(key));
      }
    }
    if (missing.empty() || context_.interrupted()) return 0;
    const auto begin = Clock::now();
    engine_ = context_.load(context_.configurations[configuration_].engine);
    stats_ = engine_->Stats();
    size_t next = 0;
    while ((next < missing.size() || !running_.empty()) && !context_.interrupted()) {
      while (next < missing.size() &&
             static_cast<int64_t>(running_.size()) < 2 * context_.max_batch) {
        Submit(*missing[next].first, missing[next].second);
        ++next;
      }
      Poll();
      double partial = 0;
      for (const Running& running : running_) partial += cost_.Cost(running.prefilled->load(), 0);
      progress_.Update(partial);
    }
    for (Running& running : running_) running.handle->Cancel();
    running_.clear();
    NoteEnd(std::chrono::duration<double>(Clock::now() - begin).count());
    engine_.reset();
    return failed_;
  }

 private:
  double Cost(const Prompt& prompt) const {
    return cost_.Cost(static_cast<int64_t>(prompt.tokens.size()), prompt.sample->max_new_tokens);
  }

  void Describe(const Sample& sample, Prediction* prediction) const {
    prediction->configuration = context_.configurations[configuration_].name;
    prediction->length = length_;
    prediction->task = sample.task;
    prediction->id = sample.id;
  }

  void Submit(const Prompt& prompt, const std::string& key) {
    Running running;
    running.prompt = &prompt;
    running.key = key;
    running.prefilled = std::make_shared<std::atomic<int64_t>>(0);
    Request request;
    request.prompt = prompt.tokens;
    request.sampling.temperature = 0;
    request.max_tokens = prompt.sample->max_new_tokens;
    request.on_prefill = [done = running.prefilled](int64_t count, int64_t) { *done = count; };
    running.handle = engine_->Submit(std::move(request));
    running_.push_back(std::move(running));
  }

  // Takes the results that have arrived; waits a little if there are none.
  void Poll() {
    bool any = false;
    for (auto it = running_.begin(); it != running_.end();) {
      any = Read(*it) || any;
      if (it->finish == FinishReason::kNone) {
        ++it;
        continue;
      }
      Finish(*it);
      it = running_.erase(it);
    }
    if (!any) std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
  }

  static bool Read(Running& running) {
    bool any = false;
    while (running.finish == FinishReason::kNone) {
      bool timed_out = false;
      auto chunk = running.handle->NextFor(0, &timed_out);
      if (!chunk) {
        LC_CHECK(timed_out, "a request ended without saying how");
        break;
      }
      any = true;
      running.text += chunk->text;
      running.finish = chunk->finish;
      running.error = chunk->error;
    }
    return any;
  }

  void Finish(const Running& running) {
    const Sample& sample = *running.prompt->sample;
    progress_.Finish(Cost(*running.prompt));
    if (running.finish == FinishReason::kError || running.finish == FinishReason::kCancelled) {
      ++failed_;
      context_.note(fmt::format("{}: sample '{}' failed: {}",
                                context_.configurations[configuration_].name, sample.id,
                                running.error.empty() ? "cancelled" : running.error));
      return;
    }
    Prediction prediction;
    Describe(sample, &prediction);
    prediction.key = running.key;
    prediction.prediction = running.text;
    prediction.references = sample.references;
    prediction.metric = sample.metric;
    prediction.score = ScoreSample(sample, running.text);
    const RequestStats stats = running.handle->Stats();
    prediction.prompt_tokens = stats.prompt_tokens;
    prediction.generated_tokens = stats.generated_tokens;
    prediction.finish = Name(running.finish);
    prediction.queue_seconds = stats.queue_seconds;
    prediction.prefill_seconds = stats.prefill_seconds;
    prediction.decode_seconds = stats.decode_seconds;
    prediction.drafts = stats.drafts;
    if (const auto depths = sample.metadata.find("depths");
        depths != sample.metadata.end() && depths->is_array()) {
      for (const auto& depth : *depths) {
        if (depth.is_number()) prediction.depths.push_back(depth.get<double>());
      }
    }
    EngineStats now = engine_->Stats();
    prediction.kv = Difference(stats_, now);
    stats_ = std::move(now);
    ++finished_;
    score_ += prediction.score;
    kv_ += prediction.kv;
    journal_.Add(std::move(prediction));
  }

  void NoteEnd(double seconds) {
    if (finished_ == 0) return;
    if (!stats_.kv_heads.empty()) {
      journal_.Add({context_.configurations[configuration_].name, length_, context_.model.layers,
                    context_.model.kv_heads, stats_.kv_heads});
    }
    std::string line =
        fmt::format("{:<16} {:>5}  {} samples in {}, average {:.2f}",
                    context_.configurations[configuration_].name, FormatTokens(length_), finished_,
                    FormatSeconds(seconds), 100 * score_ / static_cast<double>(finished_));
    if (kv_.lookups > 0) {
      line += fmt::format(", hit ratio {:.3f}, {} moved per token", kv_.HitRatio(),
                          FormatBytes(static_cast<uint64_t>(kv_.MovedPerToken())));
    }
    context_.note(line);
  }

  const RunContext& context_;
  size_t configuration_;
  int64_t length_;
  const CostModel& cost_;
  Journal& journal_;
  Progress& progress_;
  std::unique_ptr<Engine> engine_;
  EngineStats stats_;
  std::list<Running> running_;
  int64_t finished_ = 0;
  int64_t failed_ = 0;
  double score_ = 0;
  KvSums kv_;
};

}  // namespace

int64_t RunGeneration(const RunContext& context, const std::vector<SampleGroup>& groups,
                      const PromptEncoder& encode, Journal& journal) {
  const CostModel cost(context.model);
  const auto configurations = static_cast<int64_t>(context.configurations.size());
  constexpr int64_t kTypicalAnswer = 100;
  int64_t items = 0;
  double total = 0;
  const auto expected = [&](const SampleGroup& group) {
    return static_cast<double>(group.expected * configurations) *
           cost.Cost(group.length, kTypicalAnswer);
  };
  for (const SampleGroup& group : groups) {
    items += group.expected * configurations;
    total += expected(group);
  }
  Progress progress(items, total, "samples");
  int64_t failed = 0;
  for (const SampleGroup& group : groups) {
    if (context.interrupted()) break;
    progress.SetLabel(fmt::format("making samples {}", FormatTokens(group.length)));
    progress.Update(0);
    const std::vector<Sample> samples = group.make();
    const std::vector<Prompt> prompts = Encode(context, samples, encode);
    double actual = 0;
    for (const Prompt& prompt : prompts) {
      actual +=
          cost.Cost(static_cast<int64_t>(prompt.tokens.size()), prompt.sample->max_new_tokens);
    }
    progress.Correct(actual * static_cast<double>(configurations) - expected(group));
    for (size_t i = 0; i < context.configurations.size() && !context.interrupted(); ++i) {
      progress.SetLabel(
          fmt::format("{} {}", context.configurations[i].name, FormatTokens(group.length)));
      GroupRun run(context, i, group.length, cost, journal, progress);
      failed += run.Run(prompts);
    }
  }
  return failed;
}

}  // namespace litecache::eval
