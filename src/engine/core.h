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
#include "engine/draft/draft_model.h"
#include "engine/group.h"
#include "engine/prefix/prefix_reuse.h"
#include "engine/scheduler.h"
#include "kv/cache.h"
#include "litecache/engine.h"
#include "model/decoder.h"

namespace litecache::engine {

// The parts that the core runs on; they must outlive it. While the core exists, only its thread may
// use decoder, cache, stream and pool.
struct Backend {
  Device* device = nullptr;
  Stream* stream = nullptr;
  model::Decoder* decoder = nullptr;
  kv::Cache* cache = nullptr;
  ThreadPool* pool = nullptr;    // samples the rows of a batch in parallel; null: one after another
  TokenTextFactory token_text;   // empty: the model has no tokenizer
  std::vector<int32_t> eos_ids;  // each of them ends an answer
  // A model that drafts, on the same device; null without. Its vocabulary may be padded otherwise.
  model::Decoder* draft_decoder = nullptr;
  kv::Cache* draft_cache = nullptr;
};

struct CoreOptions {
  int64_t context = 0;  // most tokens of a sequence
  int64_t max_batch = 64;
  int64_t prefill_chunk = 512;
  int64_t prefill_chunk_beside_decode = 0;  // 0: prefill_chunk
  int64_t score_rows = 64;                  // prompt rows per step where each needs logits
  std::optional<PrefixOptions> prefixes;    // unset: no prefixes are kept
  bool sample_on_device = true;             // false: the host chooses all tokens
  // EngineOptions::deterministic: the most decode rows of a step, which then has no other rows; 0:
  // off.
  int64_t decode_rows = 0;
  // EngineOptions::draft_tokens; 0: no drafts. With a cache that SelectsRows() tokens are chosen by
  // attention over all rows then.
  int64_t draft_tokens = 0;
  // EngineOptions::draft; a draft model is in the Backend.
  bool draft_lookup = true, draft_sparse = false;
  bool draft_always = false;  // drafts of full length, whether or not they pay: for tests
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
  // Work on one sample's mask in a row (TokenConstraint::Prepare): 0.1 ms. A mask that takes longer
  // ends a draft, so that other samples do not wait for it.
  static constexpr int64_t kMaskPiece = 10'000;

  struct Sampled {
    Group* group = nullptr;
    size_t sample = 0;
    int64_t logit_row = 0;
    std::optional<DeviceToken> chosen;  // chosen by the device; if unset, the row is on the host
    bool drafted = false;               // the token is a draft
    // Results.
    int32_t token = 0;
    std::optional<TokenLogprob> logprob;
    std::vector<TokenLogprob> top_logprobs;
    bool complete = false;  // the sample's constraint has ended the answer
    std::string error;
  };

  // A sample that steps draft for, and its state before them.
  struct StepDraft {
    Group* group = nullptr;
    size_t sample = 0;
    int64_t most = 0;  // tokens that may be drafted
    int32_t last_token = 0;
    std::unique_ptr<TokenConstraint> constraint = nullptr;
  };

  void Enqueue(std::unique_ptr<Group> group);
  void Loop();
  // Accepts submitted requests, drops cancelled ones, admits those that fit.
  void Prepare();
  // Continues requests that wait for prefixes.
  void AdvancePrefixes();
  void RunStep();
  // Called before a step with prompt tokens, which takes long anyway: reserves the memory that the
  // running requests will need until those that decode after the step are done.
  void AllocateAhead(const StepPlan& plan);
  // The steps that a plan is run in: the plan itself, or its parts.
  std::span<const StepPlan> StepsOf(const StepPlan& plan);
  // Runs the plan; throws what the model throws.
  void Forward(const StepPlan& plan);
  // Calls Forward(), and evicts kept prefixes if it runs out of memory.
  void ForwardWithRoom(const StepPlan& plan);
  // Calls keep(); where that fails, a prefix is not kept.
  static void KeepPrefix(const std::function<void()>& keep);
  // Releases the sequence of a sample, or of a prompt in progress (sample: null).
  void ReleaseSequence(Group* group, const Sample* sample, bool keep);
  // Lets the device choose tokens if it can, and fetches the rows of all others.
  void IssueSampling(const StepPlan& plan);
  // Adds the tokens behind a row's drafts, each as if the drafts before it were right; returns the
  // index of the first one, or -1.
  int64_t AddVerifying(const StepPlan::Decode& row);
  // Advances masks of constraints, which a sample's next step needs, for a limited time; returns
  // whether all are done.
  bool PrepareConstraints();
  // Collects the tokens that may come next in a step's decodes while the device computes logits.
  void CollectAllowed(const StepPlan& plan);
  // Adds the first tokens of a prompt that ends with this step; returns the index of the first one,
  // or -1.
  int64_t AddFirstTokens(const StepPlan::Prefill& part);
  // Does everything that follows a forward pass.
  void Finish(const StepPlan& plan);
  void FinishPrefill(const StepPlan::Prefill& part);
  // Not all tokens may come next: there is a constraint, an answer that must not end yet, or words
  // that it must not contain.
  static bool Restricted(const Request& request, const Sample* sample);
  void MakeSamplers(Group* group) const;
  void StartSamples(Group* group);
  void SampleRows();
  // Fetches the rows that the device has left undecided.
  void ReceiveUndecided();
  void SampleRow(Sampled* row, SamplerScratch* scratch);
  // Writes the tokens that may come next if Restricted(): bits, ceil(vocab / 32) words.
  void AllowedTokens(const Group& group, Sample* sample, std::vector<uint32_t>* allowed) const;
  void Deliver(Sampled* row);
  // Called once, with drafts (core_drafts.cc): throws Unsupported where the cache has none.
  void PrepareDrafts();
  // Of the group's last sample.
  std::unique_ptr<SampleDrafts> StartDrafts(Group* group);
  // Proposes the next step's drafts.
  void ProposeDrafts();
  // How many of `most` tokens to draft from the text for a sample that joins a step of `rows` rows.
  // Updates the drafts and the step's expected tokens.
  int64_t ProposeLookup(int64_t most, int64_t rows, SampleDrafts* drafts, double* tokens);
  // Whether the rows of step_drafts_ are so much more than the weights that decode steps, which
  // attend few of them, can be much shorter than others.
  bool RowsDominate() const;
  // The tokens that steps may draft for a sample, at most `most`; 0: they do not draft for it.
  int64_t DraftedBySteps(const Group& group, const Sample& sample, int64_t most) const;
  // Drafts `length` tokens of each of step_drafts_, or as many as it may, by steps, and takes back
  // everything but the drafts (core_step_drafts.cc). Returns false if the draft model lacks so much
  // of a text that it cannot draft for it yet.
  bool DraftBySteps(int64_t length);
  // Runs one such step and chooses a token of every sample, in sampled_; returns the same.
  bool DraftStep(std::span<const DraftingSample> samples, bool first);
  // Lets the draft model compute a step's prompt tokens.
  void FollowPrompts(const StepPlan& plan);
  // Appends a token to a sample's draft as if the sample had chosen it; returns whether another one
  // may follow.
  bool AppendDrafted(const Sampled& row);
  // Follows a step's drafts as far as they are what the samples choose, and takes the rest back.
  void FinishDrafts(const StepPlan& plan);
  // The same for one sample: frees the rows of drafted tokens that it has not chosen.
  void TruncateRejected(const Group& group, const Sample& sample);
  void EndSample(Group* group, Sample* sample);
  // Ends a whole request and frees its memory.
  void End(Group* group, FinishReason reason, const std::string& error = {});
  void UpdateStats();
  // Delivers the results of finished steps. The statistics are updated before, so that a reader
  // that has seen a request end finds its memory free in them.
  void Send();

  std::span<const float> LogitRow(int64_t row) const;

  Backend backend_;
  CoreOptions options_;
  RequestLimits limits_;
  int64_t vocab_;
  std::unique_ptr<Mirror> logits_;                 // [max_batch + score_rows, vocab] f32
  std::unique_ptr<DeviceSampler> device_sampler_;  // null: the host chooses all tokens

  KvLimits budget_;

  std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();

  // Used by the engine's thread only.
  Scheduler scheduler_;
  StepPlan plan_;
  double step_seconds_ = 0;  // of the last step
  StepPlan retry_plan_;
  std::vector<StepPlan> parts_;  // of one of these
  // Indices of the device's tokens, or -1: for a step's decodes, for the first row behind each of
  // them that verifies a draft, and for the first of each of its prompts' samples.
  std::vector<int64_t> chosen_decodes_, chosen_verifying_, chosen_prompts_;
  std::vector<std::vector<uint32_t>> allowed_;  // [plan.decodes], by their constraints
  std::vector<Sampled> sampled_;
  std::unique_ptr<DraftModel> draft_model_;  // null without
  StepCosts step_costs_;
  DraftingCosts drafting_costs_;
  std::vector<StepDraft> step_drafts_;  // the samples for which such steps draft
  StepPlan draft_plan_;
  bool drafting_pays_ = false;  // when it was last asked
  // Steps for which they have not drafted, and after how many they draft a few tokens, whether or
  // not that promises to pay: twice as many each time, until it does.
  int64_t drafting_skipped_ = 0, drafting_retry_ = kFirstRetry;
  static constexpr int64_t kFirstRetry = 64, kLastRetry = 1024;
  // A GPU computes a step while the last one's results are sent, which takes the readers' locks and
  // wakes them. On a CPU they are sent first, and after all parts of a divided plan.
  const bool sends_beside_steps_;
  std::vector<SamplerScratch> scratch_;  // one per sampling thread
  EngineStats counters_;
  std::vector<std::pair<std::shared_ptr<Channel>, Chunk>> outbox_;
  std::vector<std::pair<std::shared_ptr<ScoreJob>, std::exception_ptr>> scored_;

  std::unique_ptr<PrefixReuse> prefixes_;  // null: no prefixes are kept

  // Shared between threads.
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> incoming_;
  EngineStats stats_;

  std::thread thread_;
};

}  // namespace litecache::engine
