#include "eval/run/perplexity.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "eval/run/divergence.h"
#include "eval/run/progress.h"

namespace litecache::eval {
namespace {

using Clock = std::chrono::steady_clock;
using Logits = std::vector<std::vector<float>>;  // [scored positions][vocab]

// Number of windows scored together: their decode steps share the reading of the weights.
constexpr int64_t kTogether = 16;

struct Interrupted {};

struct Job {
  int64_t length = 0;
  int64_t index = 0;
  int64_t end = 0;
  int64_t first = 0;  // fed as a decode step, like all later ones
  std::vector<int32_t> tokens;
  std::string identity;
  bool compared = false;  // whether a configuration in this round compares it with full attention
  Logits full;            // of full attention, during its round
};

Job MakeJob(const PerplexityOptions& options, int64_t length, int64_t index, int64_t longest) {
  Job job;
  job.length = length;
  job.index = index;
  job.end = WindowEnd(index, static_cast<int64_t>(options.text.size()), longest);
  job.first = length - options.decode_tokens - 1;
  job.tokens = options.prefix;
  const int64_t taken = length - static_cast<int64_t>(options.prefix.size());
  const auto end = options.text.begin() + job.end;
  job.tokens.insert(job.tokens.end(), end - taken, end);
  job.identity = std::string(reinterpret_cast<const char*>(job.tokens.data()),
                             job.tokens.size() * sizeof(int32_t)) +
                 fmt::format("|{}", job.first);
  return job;
}

std::vector<Window::Bucket> PromptBuckets(const std::vector<float>& nll, int64_t first) {
  std::vector<Window::Bucket> buckets;
  for (int64_t i = 0; i < first; ++i) {
    const int64_t end = BucketEnd(i + 1);  // of the predicted token
    if (buckets.empty() || buckets.back().end != end) buckets.push_back({end, 0, 0});
    ++buckets.back().tokens;
    buckets.back().nll += double{nll[static_cast<size_t>(i)]};
  }
  return buckets;
}

class Runner {
 public:
  Runner(const RunContext& context, const PerplexityOptions& options, Journal& journal)
      : context_(context), options_(options), journal_(journal), cost_(context.model) {
    const auto& all = context.configurations;
    const auto full = std::find_if(all.begin(), all.end(), [](const Configuration& configuration) {
      return configuration.engine.kv.policy == "full";
    });
    LC_CHECK(full != all.end());
    full_ = static_cast<size_t>(full - all.begin());
  }

  void Run() {
    const auto longest = LongestWindow();
    std::vector<Job> jobs;
    for (const int64_t length : options_.lengths) {
      for (int64_t i = 0; i < options_.windows; ++i) {
        jobs.push_back(MakeJob(options_, length, i, longest));
      }
    }
    CheckNames(jobs);
    const auto total = [&] {
      double sum = 0;
      int64_t items = 0;
      ForEachRound(jobs, [&](std::span<Job> round) {
        for (size_t c = 0; c < context_.configurations.size(); ++c) {
          for (const Job* job : Missing(c, round)) {
            sum += Cost(*job);
            ++items;
          }
        }
      });
      return std::pair{sum, items};
    }();
    Progress progress(total.second, total.first, "windows");
    progress_ = &progress;
    ForEachRound(jobs, [&](std::span<Job> round) { RunRound(round); });
    progress_ = nullptr;
  }

 private:
  // Tokens of text in the longest window that the model and the text allow: windows of all lengths
  // end where that one would.
  int64_t LongestWindow() const {
    return std::min(static_cast<int64_t>(options_.text.size()),
                    context_.model.max_context - static_cast<int64_t>(options_.prefix.size()));
  }

  void CheckNames(const std::vector<Job>& jobs) const {
    for (size_t c = 0; c < context_.configurations.size(); ++c) {
      for (const Job& job : jobs) {
        Window window;
        window.configuration = context_.configurations[c].name;
        window.length = job.length;
        window.index = job.index;
        journal_.CheckName(Journal::Name(window), Key(c, job));
      }
    }
  }

  std::string Key(size_t configuration, const Job& job) const {
    return MakeKey(context_, configuration, job.identity);
  }

  double Cost(const Job& job) const {
    return cost_.Cost(job.first, static_cast<int64_t>(job.tokens.size()) - job.first);
  }

  // Splits jobs of one length into rounds whose logits of full attention fit the memory for them.
  template <typename F>
  void ForEachRound(std::vector<Job>& jobs, const F& run) const {
    const auto window_bytes = static_cast<uint64_t>(options_.decode_tokens) *
                              static_cast<uint64_t>(context_.model.vocab) * sizeof(float);
    const auto size = static_cast<size_t>(
        std::clamp<uint64_t>(options_.logit_bytes / window_bytes, 1, jobs.size()));
    for (size_t begin = 0; begin < jobs.size();) {
      size_t end = begin;
      while (end < jobs.size() && end - begin < size && jobs[end].length == jobs[begin].length) {
        ++end;
      }
      run(std::span<Job>(jobs).subspan(begin, end - begin));
      begin = end;
    }
  }

  bool Has(size_t configuration, const Job& job) const {
    return journal_.Has(Key(configuration, job));
  }

  // The jobs of a round that a configuration has to run. Full attention also runs where others need
  // its logits.
  std::vector<Job*> Missing(size_t configuration, std::span<Job> round) const {
    std::vector<Job*> missing;
    for (Job& job : round) {
      if (!Has(configuration, job) || (configuration == full_ && Compared(job))) {
        missing.push_back(&job);
      }
    }
    return missing;
  }

  bool Compared(const Job& job) const {
    for (size_t c = 0; c < context_.configurations.size(); ++c) {
      if (c != full_ && !Has(c, job)) return true;
    }
    return false;
  }

  void RunRound(std::span<Job> round) {
    for (Job& job : round) job.compared = Compared(job);
    RunConfiguration(full_, Missing(full_, round));
    for (size_t c = 0; c < context_.configurations.size(); ++c) {
      if (c != full_) RunConfiguration(c, Missing(c, round));
    }
    for (Job& job : round) job.full = {};
  }

  void RunConfiguration(size_t configuration, const std::vector<Job*>& jobs) {
    if (jobs.empty() || context_.interrupted()) return;
    const Configuration& settings = context_.configurations[configuration];
    const int64_t length = jobs.front()->length;
    progress_->SetLabel(fmt::format("{} {}", settings.name, FormatTokens(length)));
    progress_->Update(0);
    const auto begin = Clock::now();
    const auto engine = context_.load(settings.engine);
    stats_ = engine->Stats();
    kv_ = {};
    Totals totals;
    std::vector<std::atomic<int64_t>> done(jobs.size());
    std::atomic<size_t> next{0};
    std::exception_ptr error;
    std::condition_variable ended;
    size_t working = ThreadCount(jobs.size());
    std::vector<std::thread> threads;
    const auto work = [&] {
      try {
        for (size_t i = next++; i < jobs.size(); i = next++) {
          RunJob(configuration, *engine, *jobs[i], &done[i], &totals);
          std::lock_guard lock(mutex_);
          done[i] = 0;
          progress_->Finish(Cost(*jobs[i]));
        }
      } catch (const Interrupted&) {
        next = jobs.size();
      } catch (...) {
        next = jobs.size();
        std::lock_guard lock(mutex_);
        if (!error) error = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      --working;
      ended.notify_all();
    };
    for (size_t i = working; i > 0; --i) threads.emplace_back(work);
    {
      std::unique_lock lock(mutex_);
      while (!ended.wait_for(lock, std::chrono::milliseconds(100), [&] { return working == 0; })) {
        double running = 0;
        for (size_t i = 0; i < jobs.size(); ++i) {
          const int64_t tokens = done[i];
          running += cost_.Cost(std::min(tokens, jobs[i]->first),
                                std::max<int64_t>(tokens - jobs[i]->first, 0));
        }
        progress_->Update(running);
      }
    }
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
    Note(configuration, length, totals,
         std::chrono::duration<double>(Clock::now() - begin).count());
  }

  size_t ThreadCount(size_t jobs) const {
    const auto row = static_cast<uint64_t>(context_.model.vocab) * sizeof(float);
    const uint64_t fit =
        options_.logit_bytes / (static_cast<uint64_t>(options_.decode_tokens) * row);
    const auto limit = static_cast<uint64_t>(std::min(context_.max_batch, kTogether));
    return std::min<size_t>(jobs, std::clamp<uint64_t>(fit, 1, limit));
  }

  struct Totals {
    double nll = 0;
    double kl = 0;
    int64_t tokens = 0;
    int64_t windows = 0;
  };

  void RunJob(size_t configuration, Engine& engine, Job& job, std::atomic<int64_t>* done,
              Totals* totals) {
    const bool is_full = configuration == full_;
    ScoreRequest request;
    request.tokens = job.tokens;
    request.decode_from = job.first;
    if (!is_full || job.compared) {
      request.positions.resize(static_cast<size_t>(options_.decode_tokens));
      std::iota(request.positions.begin(), request.positions.end(), job.first);
    }
    const auto begin = Clock::now();
    ScoreResult result = engine.Score(request, [&](int64_t count, int64_t) {
      *done = count;
      if (context_.interrupted()) throw Interrupted();
    });
    Window window;
    window.key = Key(configuration, job);
    window.configuration = context_.configurations[configuration].name;
    window.length = job.length;
    window.index = job.index;
    window.end = job.end;
    window.first = job.first;
    window.nll.assign(result.token_nll.begin() + job.first, result.token_nll.end());
    window.prompt = PromptBuckets(result.token_nll, job.first);
    window.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (is_full) {
      job.full = std::move(result.logits);
    } else {
      for (size_t i = 0; i < result.logits.size(); ++i) {
        const Divergence divergence = Compare(job.full[i], result.logits[i]);
        window.kl.push_back(static_cast<float>(divergence.kl));
        window.same_top.push_back(divergence.same_top);
      }
    }
    EngineStats now = engine.Stats();
    std::lock_guard lock(mutex_);
    window.kv = Difference(stats_, now);
    window.kv.decode_tokens =
        static_cast<double>(job.tokens.size()) - static_cast<double>(job.first);
    stats_ = std::move(now);
    totals->windows += 1;
    totals->tokens += static_cast<int64_t>(window.nll.size());
    totals->nll += std::accumulate(window.nll.begin(), window.nll.end(), 0.0);
    totals->kl += std::accumulate(window.kl.begin(), window.kl.end(), 0.0);
    kv_ += window.kv;
    if (!journal_.Has(window.key)) journal_.Add(std::move(window));
  }

  void Note(size_t configuration, int64_t length, const Totals& totals, double seconds) {
    if (totals.windows == 0) return;
    const std::string& name = context_.configurations[configuration].name;
    if (!stats_.kv_heads.empty()) {
      journal_.Add({name, length, context_.model.layers, context_.model.kv_heads, stats_.kv_heads});
    }
    const auto tokens = static_cast<double>(totals.tokens);
    std::string line =
        fmt::format("{:<16} {:>5}  {} windows in {}, perplexity {:.4f}", name, FormatTokens(length),
                    totals.windows, FormatSeconds(seconds), std::exp(totals.nll / tokens));
    if (configuration != full_) line += fmt::format(", KL {:.6f}", totals.kl / tokens);
    if (kv_.lookups > 0) {
      line += fmt::format(", hit ratio {:.3f}, {} moved per token", kv_.HitRatio(),
                          FormatBytes(static_cast<uint64_t>(kv_.MovedPerToken())));
    }
    context_.note(line);
  }

  const RunContext& context_;
  const PerplexityOptions& options_;
  Journal& journal_;
  CostModel cost_;
  size_t full_ = 0;
  Progress* progress_ = nullptr;
  std::mutex mutex_;  // guards the journal, the progress, and the following members
  EngineStats stats_;
  KvSums kv_;
};

}  // namespace

int64_t WindowEnd(int64_t index, int64_t tokens, int64_t longest) {
  // Multiples of the golden ratio modulo one are evenly distributed for any count.
  constexpr double kGolden = 0.6180339887498949;
  const double place = std::fmod(0.5 + static_cast<double>(index) * kGolden, 1.0);
  return longest + static_cast<int64_t>(place * static_cast<double>(tokens - longest));
}

void CheckPerplexity(const RunContext& context, const PerplexityOptions& options) {
  LC_CHECK(!options.lengths.empty() && options.windows >= 1 && options.decode_tokens >= 1);
  const auto text = static_cast<int64_t>(options.text.size());
  const auto prefix = static_cast<int64_t>(options.prefix.size());
  for (const int64_t length : options.lengths) {
    LC_CHECK(length <= context.model.max_context);
    if (length < options.decode_tokens + 2 || length <= prefix) {
      throw InvalidArgument(
          "--lengths: {} is too short to score its last {} tokens (--decode-tokens)", length,
          options.decode_tokens);
    }
    if (length - prefix > text) {
      throw InvalidArgument("--lengths: windows of {} tokens do not fit a text of {} tokens",
                            length, text);
    }
  }
}

void RunPerplexity(const RunContext& context, const PerplexityOptions& options, Journal& journal) {
  CheckPerplexity(context, options);
  Runner(context, options, journal).Run();
}

}  // namespace litecache::eval
