// The engine without its model's files: a thread that runs requests on a decoder and a KV cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "engine/channel.h"
#include "engine/device_sampler.h"
#include "engine/group.h"
#include "engine/prefix/prefix_reuse.h"
#include "engine/scheduler.h"
#include "kv/cache.h"
#include "litecache/engine.h"
#include "model/decoder.h"

namespace litecache::engine {

// What the core runs on; everything outlives it. Only the core's thread touches decoder, cache,
// stream and pool while it lives.
struct Backend {
  Device* device = nullptr;
  Stream* stream = nullptr;
  model::Decoder* decoder = nullptr;
  kv::Cache* cache = nullptr;
  ThreadPool* pool = nullptr;    // samples the rows of a batch in parallel; null: one after another
  TokenTextFactory token_text;   // empty: the model has no tokenizer
  std::vector<int32_t> eos_ids;  // end every answer
};

struct CoreOptions {
  int64_t context = 0;  // tokens a sequence may reach
  int64_t max_batch = 64;
  int64_t prefill_chunk = 512;
  int64_t prefill_chunk_beside_decode = 0;  // 0: prefill_chunk
  int64_t score_rows = 64;                  // rows of a score job in a step
  std::optional<PrefixOptions> prefixes;    // unset: nothing is kept
  bool sample_on_device = true;             // off: the host chooses all tokens
};

class Core {
 public:
  // Allocates the logits [max_batch + score_rows, vocab] and starts the thread.
  Core(const Backend& backend, const CoreOptions& options);
  // Ends all requests as cancelled and joins the thread.
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // See litecache::Engine.
  std::shared_ptr<RequestHandle> Submit(Request request);
  ScoreResult Score(ScoreRequest request,
                    const std::function<void(int64_t done, int64_t total)>& progress);
  EngineStats Stats() const;

 private:
  struct Sampled {
    Group* group = nullptr;
    size_t sample = 0;
    int64_t logit_row = 0;
    std::optional<DeviceToken> chosen;  // by the device; else the row is on the host
    // Results.
    int32_t token = 0;
    std::optional<TokenLogprob> logprob;
    std::vector<TokenLogprob> top_logprobs;
    bool complete = false;  // the sample's constraint has ended the answer
    std::string error;
  };

  void Enqueue(std::unique_ptr<Group> group);
  void Loop();
  // Takes over what was submitted, drops what was cancelled, admits what fits.
  void Prepare();
  // Goes on with what waits for prefixes.
  void AdvancePrefixes();
  void RunStep();
  // Before a step with parts of prompts, which takes long anyway: the memory that what runs will
  // have come to use when those that decode after it are done.
  void Provide(const StepPlan& plan);
  // Runs the plan; throws what the model throws.
  void Forward(const StepPlan& plan);
  // The same; gives up kept prefixes where their memory is needed.
  void ForwardWithRoom(const StepPlan& plan);
  // Releases the sequence of a sample, or of a prompt in progress (sample: null).
  void ReleaseSequence(Group* group, const Sample* sample, bool keep);
  // Has the device choose tokens where it can, and fetches the rows of all others.
  void IssueSampling(const StepPlan& plan);
  void CollectAllowed(const StepPlan& plan);
  // Adds the first tokens of a prompt that ends with this step; returns which the first of them is,
  // or -1.
  int64_t AddFirstTokens(const StepPlan::Prefill& part);
  // Everything that follows a forward pass.
  void Finish(const StepPlan& plan);
  void FinishPrefill(const StepPlan::Prefill& part);
  void MakeSamplers(Group* group) const;
  void StartSamples(Group* group);
  void SampleRows();
  // Fetches the rows that the device has left to the host after all.
  void ReceiveUndecided();
  void SampleRow(Sampled* row, SamplerScratch* scratch);
  // Which tokens may come next, by a sample's constraint: bits, ceil(vocab / 32) words.
  void AllowedTokens(const std::vector<int32_t>& stop_ids, Sample* sample,
                     std::vector<uint32_t>* allowed) const;
  void Deliver(Sampled* row);
  void EndSample(Group* group, Sample* sample);
  // Ends a whole request and frees what it holds.
  void End(Group* group, FinishReason reason, const std::string& error = {});
  void UpdateStats();
  // Hands out what a step has produced, after the statistics: a reader that sees its end and asks
  // for them finds its memory free.
  void Flush();

  std::span<const float> LogitRow(int64_t row) const;

  Backend backend_;
  CoreOptions options_;
  RequestLimits limits_;
  int64_t vocab_;
  std::unique_ptr<Mirror> logits_;                 // [max_batch + score_rows, vocab] f32
  std::unique_ptr<DeviceSampler> device_sampler_;  // null: the host chooses all tokens

  KvLimits budget_;

  std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();

  // Owned by the thread.
  Scheduler scheduler_;
  StepPlan plan_;
  StepPlan retry_plan_;
  // Which of the device's tokens is whose, or -1: of a step's decodes, and the first of each of its
  // prompts' samples.
  std::vector<int64_t> chosen_decodes_, chosen_prompts_;
  std::vector<std::vector<uint32_t>> allowed_;  // of plan.decodes: by their constraints
  std::vector<Sampled> sampled_;
  std::vector<SamplerScratch> scratch_;  // one a sampling thread
  EngineStats counters_;
  std::vector<std::pair<std::shared_ptr<Channel>, Chunk>> outbox_;
  std::vector<std::pair<std::shared_ptr<ScoreJob>, std::exception_ptr>> scored_;

  std::unique_ptr<PrefixReuse> prefixes_;  // null: nothing is kept

  // Shared.
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> incoming_;
  EngineStats stats_;

  std::thread thread_;
};

}  // namespace litecache::engine
