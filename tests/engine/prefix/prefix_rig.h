// A core over a cache of any policy, for tests of kept prefixes.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core_fixture.h"
#include "kv/cache_plan.h"

namespace litecache::engine {

inline KvOptions Policy(const std::string& policy, const std::string& retriever = "exact") {
  KvOptions options;
  options.policy = policy;
  options.retriever = retriever;
  options.hata_bits = 128;
  options.budget = KvBudget::Parse("20%");
  options.recent_tokens = 8;
  options.carry_tokens = 8;
  options.thresholds = "fixed";
  return options;
}

class PrefixRig {
 public:
  // The KV budget holds `sequences` sequences of `tokens` tokens. window: of the first layer.
  explicit PrefixRig(const KvOptions& kv, std::optional<PrefixOptions> prefixes = PrefixOptions{},
                     int64_t tokens = 1 << 16, int64_t chunk = 48, uint64_t sequences = 1,
                     int64_t window = 0)
      : decoder(1 << 20, window), device_(2), stream_(device_.CreateStream()) {
    const auto plan = kv::MakeCachePlan(decoder.config().kv_layout(DType::kF32), kv, nullptr);
    if (prefixes) prefixes->space = "toy; " + plan->Identity();
    cache_ = plan->Create(device_, sequences * plan->BytesFor(tokens));
    decoder.on_step = [this](const kv::Step& step) { rows += step.rows; };
    Backend backend{&device_, stream_.get(), &decoder, cache_.get(), &device_.pool()};
    core_ = std::make_unique<Core>(backend, CoreOptions{.context = 4000,
                                                        .max_batch = 16,
                                                        .prefill_chunk = chunk,
                                                        .score_rows = 8,
                                                        .prefixes = prefixes});
  }
  ~PrefixRig() {
    if (core_ != nullptr) Close();
  }
  // Ends the core; no pages may be left.
  void Close() {
    core_.reset();
    EXPECT_EQ(cache_->GetStats().used, kv::TierBytes{}) << "pages leaked";
  }
  Core& core() { return *core_; }
  // Nothing runs, so all used memory belongs to kept prefixes.
  void ExpectIdle() {
    const EngineStats stats = core_->Stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.kv.used, stats.prefix.bytes);
  }

  ToyDecoder decoder;
  std::atomic<int64_t> rows{0};

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<Core> core_;
};

inline std::vector<int32_t> Tokens(std::mt19937_64& random, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % ToyDecoder::kVocab);
  return tokens;
}

inline Request Greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

struct Result {
  std::vector<int32_t> tokens;
  RequestStats stats;
};

inline Result Answered(PrefixRig& rig, const Request& request) {
  const auto handle = rig.core().Submit(request);
  const auto answers = ReadAll(*handle, request.n);
  EXPECT_EQ(answers[0].finish, FinishReason::kLength) << answers[0].error;
  return {answers[0].tokens, handle->Stats()};
}

// One of many requests at once, which may be cancelled before it is read.
struct Job {
  Request request;
  std::shared_ptr<RequestHandle> handle;
  bool cancel = false;
};

// Ends all: answers are those of an engine that keeps nothing.
inline void FinishJobs(std::vector<Job>* jobs, PrefixRig& fresh) {
  for (Job& job : *jobs) {
    if (job.cancel) {
      job.handle->Cancel();
      while (job.handle->Next()) {
      }
      continue;
    }
    const auto answers = ReadAll(*job.handle, job.request.n);
    const auto expected = Answered(fresh, job.request).tokens;
    for (const Answer& answer : answers) EXPECT_EQ(answer.tokens, expected) << answer.error;
  }
  jobs->clear();
}

}  // namespace litecache::engine
