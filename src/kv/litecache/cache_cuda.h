// Policy `litecache` on a GPU: runs the parts of a step in order.
//
// CudaSequences and CudaLayers hold what kernels read, CudaDecodePath and CudaPrefillPath issue a
// layer's operations, LinkPulls transfers rows, CudaCounters counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kv/litecache/cache_base.h"
#include "kv/litecache/counters_cuda.h"
#include "kv/litecache/decode_cuda.h"
#include "kv/litecache/layers_cuda.h"
#include "kv/litecache/prefill_cuda.h"
#include "kv/litecache/pulls_cuda.h"
#include "kv/litecache/result_override_cuda.h"
#include "kv/litecache/retrieve_cuda.h"
#include "kv/litecache/sequences_cuda.h"
#include "kv/litecache/unchecked_steps.h"
#include "kv/step/step_block_cuda.h"

namespace litecache::kv {

class CudaLiteCache final : public LiteCacheBase {
 public:
  CudaLiteCache(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
                const KvOptions& options, std::unique_ptr<Retriever> retriever,
                const TierBytes& budget, std::unique_ptr<CudaResultOverride> results,
                const ops::SparsePrefill& sparse);

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override;

  // A shared entry would have to be encoded anew, from keys that are on the host.
  bool CanTruncate() const override { return !retriever_->shares_entries(); }
  void Truncate(SequenceId id, int64_t tokens) override;

  void BeginStep(const Step& step) override;
  std::optional<uint64_t> ReplayKey(const Step& step) const override;
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;

  // The counters as of the last step that was waited for.
  Stats GetStats() const override;
  std::span<const HeadCounters> Heads() const override { return counters_.Heads(); }

  TransferEngine& transfer() { return pulls_.engine(); }
  // Null if every layer has a pull kernel of its own.
  StepPull* step_pull() { return pulls_.step_pull(); }

  // For diagnosis, as LiteCache's functions; both synchronize with the device.
  std::vector<int32_t> CachedPositions(SequenceId id, int64_t layer, int64_t head) {
    return sequences_.CachedPositions(id, layer, head);
  }
  std::vector<float> Label(SequenceId id, int64_t layer, int64_t head) {
    return sequences_.Label(id, layer, head);
  }

 private:
  // Runs `start`, which creates the device's part of a sequence; if it throws, the sequence is
  // removed from the tiers again.
  SequenceId Started(SequenceId id, const std::function<void()>& start);
  // Writes the step's sequences for kernels; returns the length of the longest decode sequence.
  int64_t Describe(const Step& step);
  // Whether the step's heads, all of them resident, attend the rows that the last one selected.
  bool KeepsRows(const Step& step) const;
  // Issues the step's first operations, once a step.
  void Start(Stream& stream, float scale);
  // Call after waiting for a stream: throws DeviceError if a transfer has failed.
  void CheckTransfers();
  std::vector<CudaBranch*> Branches();

  const std::vector<uint8_t> prefetched_;     // [layers]: whether rows are prefetched
  std::unique_ptr<CudaRetriever> on_device_;  // retriever_ provides sizes and weights
  std::shared_ptr<const std::function<void()>> check_transfers_;
  CudaLayers layers_;
  CudaCounters counters_;
  CudaSequences sequences_;
  StepBlock block_;
  UncheckedSteps unchecked_;
  // The order matters: later members' streams use the memory of earlier ones and are waited for
  // before it is freed.
  CudaPrefillPath prefill_;
  LinkPulls pulls_;
  CudaDecodePath decode_;

  // State of the current step.
  std::vector<StepSequence> fills_;  // sequences whose slots Start() fills
  bool started_ = false;
  int64_t context_ = 0;              // context bucket of the longest decode sequence
  std::vector<SequenceId> decoded_;  // what the last step decoded, unless it is outdated
  bool selected_ = true;             // whether the step's resident heads select rows
};

}  // namespace litecache::kv
