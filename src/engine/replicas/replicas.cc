#include "engine/replicas/replicas.h"

#include <fmt/core.h>

#include <algorithm>
#include <future>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/load.h"
#include "engine/machine_share.h"
#include "engine/replicas/routes.h"

namespace litecache::engine {
namespace {

using Engines = std::vector<std::unique_ptr<Engine>>;

void Add(const PrefixStats& more, PrefixStats* sum) {
  sum->requests += more.requests;
  sum->hits += more.hits;
  sum->tokens += more.tokens;
  sum->tokens_loaded += more.tokens_loaded;
  sum->sequences += more.sequences;
  sum->bytes += more.bytes;
  sum->evictions += more.evictions;
  sum->store_writing = more.store_writing && (sum->store_writing || !sum->store);
  sum->store = more.store;
  sum->store_blocks += more.store_blocks;
  sum->store_bytes += more.store_bytes;
  sum->store_capacity += more.store_capacity;
  sum->store_bytes_read += more.store_bytes_read;
  sum->store_bytes_written += more.store_bytes_written;
  sum->store_evictions += more.store_evictions;
  sum->store_damaged += more.store_damaged;
}

void Add(const EngineStats& more, EngineStats* sum) {
  sum->running += more.running;
  sum->waiting += more.waiting;
  sum->steps += more.steps;
  sum->prompt_tokens += more.prompt_tokens;
  sum->generated_tokens += more.generated_tokens;
  sum->drafts += more.drafts;
  sum->kv += more.kv;
  sum->kv_heads.resize(more.kv_heads.size());
  for (size_t i = 0; i < more.kv_heads.size(); ++i) sum->kv_heads[i] += more.kv_heads[i];
  Add(more.prefix, &sum->prefix);
}

// Tokens whose KV an engine has room for.
int64_t TokensKept(const Engine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  if (plan.kv_per_token == 0) return std::numeric_limits<int32_t>::max();
  return static_cast<int64_t>(plan.kv.total() / plan.kv_per_token);
}

class Replicas final : public Engine {
 public:
  Replicas(Engines engines, bool keep_prefixes)
      : engines_(std::move(engines)),
        plan_(engines_[0]->memory_plan()),
        notes_(engines_[0]->kv_notes()),
        routes_(static_cast<int>(engines_.size()),
                keep_prefixes ? std::ssize(engines_) * TokensKept(*engines_[0]) : 0) {
    for (const auto& engine : engines_) {
      const MemoryPlan& plan = engine->memory_plan();
      plan_.largest_context = std::min(plan_.largest_context, plan.largest_context);
      plan_.context_limit = std::min(plan_.context_limit, plan.context_limit);
    }
    plan_.max_batch *= std::ssize(engines_);
    notes_.push_back(fmt::format(
        "data parallelism: {} engines; memory is of one, and decodes of all", engines_.size()));
  }

  const model::ModelConfig& config() const override { return engines_[0]->config(); }
  const tokenizer::Tokenizer& tokenizer() const override { return engines_[0]->tokenizer(); }
  const std::filesystem::path& directory() const override { return engines_[0]->directory(); }
  const MemoryPlan& memory_plan() const override { return plan_; }
  const std::vector<std::string>& kv_notes() const override { return notes_; }
  const SamplingParams& default_sampling() const override {
    return engines_[0]->default_sampling();
  }
  std::string Description() const override { return engines_[0]->Description(); }

  EngineStats Stats() const override {
    EngineStats sum;
    for (size_t i = 0; i < engines_.size(); ++i) {
      const EngineStats stats = engines_[i]->Stats();
      Add(stats, &sum);
      sum.parts.push_back({fmt::format("replica {}", i), stats.running, stats.waiting, stats.kv});
    }
    return sum;
  }

  std::shared_ptr<RequestHandle> Submit(Request request) override {
    // One after another, so that each choice counts for the next one.
    std::lock_guard lock(mutex_);
    Engine& engine = Choose(request.prompt);
    return engine.Submit(std::move(request));
  }
  ScoreResult Score(const ScoreRequest& request,
                    const std::function<void(int64_t, int64_t)>& progress) override {
    Engine* engine = nullptr;
    {
      std::lock_guard lock(mutex_);
      engine = &Choose({});  // scores neither use nor keep prefixes
    }
    return engine->Score(request, progress);
  }

 private:
  Engine& Choose(std::span<const int32_t> prompt) {
    std::vector<int64_t> requests;
    for (const auto& engine : engines_) {
      const EngineStats stats = engine->Stats();
      requests.push_back(stats.running + stats.waiting);
    }
    return *engines_[static_cast<size_t>(routes_.Choose(prompt, requests))];
  }

  const Engines engines_;
  MemoryPlan plan_;
  std::vector<std::string> notes_;
  std::mutex mutex_;
  Routes routes_;  // guarded by the mutex
};

}  // namespace

std::unique_ptr<Engine> LoadReplicas(
    const EngineOptions& options,
    const std::function<std::unique_ptr<Engine>(const EngineOptions& options)>& load) {
  const int count = options.data_parallel;
  LC_CHECK(count > 1 && count <= Routes::kMostReplicas);
  EngineOptions all = options;
  if (all.memory == 0) all.memory = DefaultMemory();
  std::vector<std::future<std::unique_ptr<Engine>>> loading;
  for (int i = 0; i < count; ++i) {
    EngineOptions own = ShareOfMachine(all, i, count);
    own.data_parallel = 1;
    own.prefix_store_bytes /= static_cast<uint64_t>(count);
    if (!own.prefix_store.empty()) own.prefix_store /= fmt::format("replica-{}", i);
    loading.push_back(std::async(std::launch::async, load, own));
  }
  for (const auto& one : loading) one.wait();  // the error of one is thrown once all have ended
  Engines engines;
  for (auto& one : loading) engines.push_back(one.get());
  return std::make_unique<Replicas>(std::move(engines), options.prefix_cache);
}

}  // namespace litecache::engine
