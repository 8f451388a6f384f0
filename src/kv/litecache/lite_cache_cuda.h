// Policy `litecache` on a GPU: every decision is made by kernels (ops/reuse/litecache_cuda.h);
// the host keeps the tables of pages and knows lengths only, so a decode step can be replayed as a
// graph.
//
// Branches (device/cuda/branch.h) work for a layer while those before it are computed: with
// prefetch `decisions` finds the rows that the decode sequences want and `link` brings them, so
// that the link moves one layer's rows while the next one's are chosen; for a prompt's chunk `link`
// moves rows between the store and staging pages. Beside one sequence's step pulls have SMs of
// their own (device/cuda/sm_split.h), where one kernel makes them all (transfer/step_pull_cuda.h),
// and the rest of the step all others. What several streams touch exists several times: work arrays
// for each layer ahead and for the one that attends, staging pages by turns, scratch a stream.
// Everything else of a layer has one user at a time: the branches until Attend() of the layer joins
// them, then the stream.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/sm_split.h"
#include "kv/litecache/decisions_cuda.h"
#include "kv/litecache/lite_cache_base.h"
#include "kv/litecache/result_override_cuda.h"
#include "kv/litecache/retrieve_cuda.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "kv/transfer/step_pull_cuda.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/reuse/litecache_cuda.h"

namespace litecache::kv {

class CudaLiteCache final : public LiteCacheBase {
 public:
  CudaLiteCache(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
                const KvOptions& options, int64_t ahead, std::unique_ptr<Retriever> retriever,
                const TierBytes& budget,
                std::unique_ptr<const CudaResultOverride> results = nullptr);

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override;

  void BeginStep(const Step& step) override;
  std::optional<uint64_t> ReplayKey(const Step& step) const override;
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;

  // What the last step that was waited for has counted.
  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override;

  TransferEngine& transfer() { return *transfer_; }
  // Null where every layer has a pull of its own.
  StepPull* step_pull() { return step_pull_.get(); }

  // For diagnosis, as LiteCache's; they wait for the device.
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head);
  std::vector<float> Label(SequenceId id, int64_t layer, int64_t head);

 private:
  // A sequence's tables and state in device memory.
  struct Sequence {
    DevicePages resident, store, metadata, scales, slots, labels;
    Buffer heads;         // HeadState [offloaded]
    bool filled = false;  // its slots hold what belongs there
    // Forked since its last decode step, which copies the slots' pages that it shares.
    bool forked = false;
    int64_t slot_pages = 0;  // that the device knows
    // Why its slots hold what they should not: a transfer failed. It cannot go on.
    std::string lost;
  };

  Sequence& Get(SequenceId id) { return sequences_.at(id); }
  // The device's part of a sequence whose tables are there, without any rows in its slots; releases
  // the sequence where there is no memory for it.
  void StartSequence(SequenceId id);
  void UpdatePages(const StepSequence& part, Sequence* sequence);
  // What a step's kernels are told of a sequence.
  void Describe(const StepSequence& part, const Sequence& sequence,
                ops::cuda::StepSequence* target) const;
  // The staging pages that the step's prompts attend from.
  void SendStaging(const Step& step);
  void ReserveWork(int64_t sequences, int64_t context);
  // After a stream has been waited for: throws DeviceError where a transfer has failed.
  void CheckTransfers();
  // First in a step's operations.
  void Start(Stream& stream, float scale);
  // What leaves the recent window: to the store, its keys into metadata.
  void Spill(Stream& stream, int64_t layer);
  // The same, once a step, of a layer that is prefetched.
  void SpillAhead(Stream& stream, int64_t layer);
  // Which heads are to be refreshed.
  void LookUp(Stream& stream, int64_t layer, const MatrixView& q);
  // Which rows the heads that are to be refreshed want, and the slots for them.
  void Choose(Stream& stream, int64_t layer, const ops::cuda::SelectQuery& query,
              const Decisions::Chain& chain);
  // Of what the step's own stream chooses.
  Decisions::Chain OwnChain() const {
    return {.scratch = scratch_.data(), .aside_scratch = scratch_.data()};
  }
  // Those of them that are not there.
  void Pull(Stream& stream, int64_t layer);
  // What resident heads attend, with the actual query.
  void SelectResident(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, float scale, const MatrixView& out);
  // out: null where nothing is attended.
  void AttendPrompt(Stream& stream, int64_t layer, int64_t index, const MatrixView& q,
                    const MatrixView& k, const MatrixView& v, float scale, const MatrixView* out);
  std::vector<CudaBranch*> Branches();
  // Whether this step's pulls have SMs of their own: where one sequence decodes, by itself, or
  // where several long ones do, whose rows keep the link busy most of the time (6 of 131,000
  // tokens: 13.4 instead of 14.4 ms a step); with LITECACHE_PULL_SMS any. A prompt's chunk wants
  // all SMs, and so do selections for many short sequences (16 of 8K: 8.5 to 9.0 ms instead of 8.0
  // to 8.4).
  bool Apart() const;
  CudaBranch& pulls() { return Apart() ? *apart_pull_ : link_; }
  // Whether one kernel pulls the rows of all its layers.
  bool OnePull() const { return step_pull_ != nullptr && step_pull_->on(); }
  bool HasResident(int64_t layer) const;
  bool ReplacesRows() const { return results_ != nullptr && results_->replaces_rows(); }
  // Whether it has resident heads that select.
  bool ResidentSelect(int64_t layer) const;

  // A prompt's chunk at one layer, one of those that take turns with the staging pages.
  struct Turn {
    int64_t layer = 0, sequence = 0;
  };
  std::optional<Turn> After(const Turn& turn) const;
  // Rows that were generated since the last prompt and are still recent, to the store.
  void SpillRing(Stream& stream, const Turn& turn);
  // On the link: what the store has of the sequence's earlier rows, into staging set `set`.
  void Fetch(const Turn& turn, int set);
  // `rows` of every offloaded head.
  void Count(int64_t rows, Traffic* traffic) const;
  ops::cuda::RowTable Staging(int64_t layer, int set) const;
  // On the link: the earlier rows of the turn's sequence from the store into staging set `set`, or
  // its new ones from there to the store.
  enum class Direction { kToStaging, kToStore };
  void CopyStaged(const Turn& turn, int set, Direction direction);

  CudaDevice& device_;
  std::unique_ptr<CudaRetriever> scorer_;  // retriever_ has its sizes and weights
  ops::Aggregation aggregation_;
  bool delta_;
  std::unique_ptr<TransferEngine> transfer_;
  std::shared_ptr<const std::function<void()>> check_transfers_;
  ops::cuda::LiteShape lite_shape_;
  std::vector<ops::cuda::LiteLayer> layers_;
  std::unique_ptr<const CudaResultOverride> results_;  // null: as found
  Buffer constants_;                                   // lists of heads, thresholds, importance
  std::array<std::vector<const int32_t*>, 2> staging_lists_;  // [sets][layers], in constants_
  std::unique_ptr<Mirror> counters_;  // DeviceHeadCounters [layers][kv_heads]
  std::unordered_map<SequenceId, Sequence> sequences_;
  StepBlock block_;
  DevicePages staging_;
  CudaCopyBatch copies_;
  // refresh, selected, moved: a set for each of ahead_ + 1 layers in turns; layers_ point into it.
  Buffer work_;
  int32_t* no_refresh_ = nullptr;  // [pairs] zeros, in work_
  Buffer scratch_;                 // of selections, updates and attention, one after another
  int64_t work_sequences_ = 0, work_context_ = 0;

  // Of the step in progress.
  std::vector<SequenceId> running_;    // its sequences
  bool running_checked_ = true;        // CheckTransfers() after all that it has issued so far
  std::vector<SequenceId> unchecked_;  // of steps before it, since the last CheckTransfers()
  std::vector<StepSequence> fills_;    // its sequences whose slots Start() fills
  bool started_ = false;
  std::vector<uint8_t> prepared_;  // layers that the branches refresh
  std::vector<uint8_t> spilled_;   // layers that they have spilled
  int64_t turns_ = 0;              // of chunks with the staging pages
  int64_t context_ = 0;
  // Counted on the host, from lengths.
  Stats stats_;
  int64_t resident_selecting_ = 0;  // resident heads that attend a selection
  // Candidates and number of (sequence, step) whose heads look up.
  int64_t lookup_candidates_ = 0, lookup_sequences_ = 0;
  mutable std::vector<HeadCounters> heads_;

  // Marks of link_: a layer's slots are refreshed, in turns; a staging set has the earlier
  // rows.
  static constexpr int kRefreshed = 0, kFetched = kMostAhead + 1, kMarks = kFetched + 2;
  const SmSplit* split_;                 // null: pulls share all SMs
  const bool always_apart_;              // also beside several short sequences
  std::shared_ptr<CudaStream> rest_;     // where a step whose pulls are apart runs
  std::unique_ptr<StepPull> step_pull_;  // of such steps; null: every layer has its own pull
  // Last: they wait before what they use is freed.
  std::optional<Decisions> decisions_;  // on layers that are prefetched
  CudaBranch link_;
  std::optional<CudaBranch> apart_pull_;  // of steps whose pulls are apart, where there is a split
};

}  // namespace litecache::kv
