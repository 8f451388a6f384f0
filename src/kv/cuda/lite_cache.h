// Policy `litecache` on a GPU: every decision is made by kernels (ops/cuda/litecache.h); the host
// keeps the tables of pages and knows lengths only, so a decode step can be replayed as a graph.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kv/cache.h"
#include "kv/cuda/device_pages.h"
#include "kv/cuda/retrieve.h"
#include "kv/cuda/step_block.h"
#include "kv/cuda/transfer_engine.h"
#include "kv/imposed_reuse.h"
#include "kv/litecache/growth.h"
#include "kv/litecache/tiers.h"
#include "kv/retriever.h"
#include "kv/row_store.h"
#include "kv/step_check.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/impose_reuse.h"
#include "ops/cuda/litecache.h"

namespace litecache::kv {

class CudaLiteCache final : public Cache, public RowStore {
 public:
  CudaLiteCache(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
                const KvOptions& options, std::unique_ptr<Retriever> retriever,
                const TierBytes& budget, const ImposedReuse* imposed = nullptr);

  std::string_view policy() const override { return "litecache"; }
  const Layout& layout() const override { return tiers_.shape.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return tiers_.shape.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return tiers_.shape.ForkBytesFor(shared, tokens);
  }

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return tiers_.resident.Length(id); }

  void BeginStep(const Step& step) override;
  std::optional<uint64_t> ReplayKey(const Step& step) const override;
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

  // For diagnosis, as LiteCache's; they wait for the device.
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head);
  std::vector<float> Label(SequenceId id, int64_t layer, int64_t head);

 private:
  // A sequence's tables and state in device memory.
  struct Sequence {
    DevicePages resident, store, metadata, slots, labels;
    Buffer heads;         // HeadState [offloaded]
    bool filled = false;  // its slots hold what belongs there
    // Forked since its last decode step, which copies the slots' pages that it shares.
    bool forked = false;
    int64_t slot_pages = 0;  // that the device knows
    // Why its slots hold what they should not: a transfer failed. It cannot go on.
    std::string lost;
  };

  Sequence& Get(SequenceId id) { return sequences_.at(id); }
  void UpdatePages(const StepSequence& part, Sequence* sequence);
  void ReserveWork(int64_t sequences, int64_t context);
  // After a stream has been waited for: throws DeviceError where a transfer has failed.
  void CheckTransfers();
  // First in a step's operations.
  void Start(Stream& stream, float scale);
  // Spills what leaves the recent window, then looks up.
  void Decide(Stream& stream, int64_t layer, const MatrixView& q);
  void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, float scale, const MatrixView& out);
  // out: null where nothing is attended.
  void AttendPrompt(Stream& stream, int64_t layer, int64_t index, const MatrixView& q,
                    const MatrixView& k, const MatrixView& v, float scale, const MatrixView* out);
  bool HasOffloaded(int64_t layer) const;
  ops::cuda::ImposedLayer Imposed(int64_t layer) const;
  // `rows` of every offloaded head.
  void Count(int64_t rows, Traffic* traffic) const;
  ops::cuda::RowTable Staging(int64_t layer) const;

  CudaDevice& device_;
  PinnedHost host_;
  Tiers tiers_;
  TierGrowth growth_;
  std::unique_ptr<Retriever> retriever_;  // sizes and weights; the GPU's twin does the work
  std::unique_ptr<CudaRetriever> scorer_;
  ops::Aggregation aggregation_;
  bool delta_;
  std::unique_ptr<TransferEngine> transfer_;
  std::shared_ptr<const std::function<void()>> check_transfers_;
  ops::cuda::LiteShape lite_shape_;
  std::vector<ops::cuda::LiteLayer> layers_;
  Buffer imposed_;  // ImposedHead [steps][layers][kv_heads], of measurements; else empty
  int64_t imposed_steps_ = 0;
  Buffer constants_;                           // lists of heads, thresholds, importance
  std::vector<const int32_t*> staging_lists_;  // [layers], in constants_
  std::unique_ptr<Mirror> counters_;           // DeviceHeadCounters [layers][kv_heads]
  std::unordered_map<SequenceId, Sequence> sequences_;
  StepBlock block_;
  DevicePages staging_;
  Buffer work_;     // refresh, selected, moved: layers_ point into it
  Buffer scratch_;  // of selections, updates and attention, one after another
  int64_t work_sequences_ = 0, work_context_ = 0;

  // Of the step in progress.
  StepCheck check_;
  std::vector<SequenceId> running_;  // its sequences, until they have been checked
  std::vector<StepSequence> fills_;  // its sequences whose slots Start() fills
  bool started_ = false;
  int64_t context_ = 0;
  // Counted on the host, from lengths.
  Stats stats_;
  int64_t resident_selecting_ = 0;  // resident heads that attend a selection
  // Candidates and number of (sequence, step) whose heads look up.
  int64_t lookup_candidates_ = 0, lookup_sequences_ = 0;
  mutable std::vector<HeadCounters> heads_;
};

}  // namespace litecache::kv
