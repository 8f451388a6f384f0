// Policy `infinigen` on a GPU: channels, partial keys and the choice of rows are kernels
// (ops/cuda/infinigen.h), and the chosen rows travel by a transfer engine. The host knows lengths
// only, so that a decode step can be replayed as a graph.
//
// Two branches work for a layer while the one before it is computed: `decisions` scores and
// chooses, `link` brings the rows into the layer's buffer. What two layers use at a time exists
// twice, by the layer's parity.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "kv/cache.h"
#include "kv/cuda/device_pages.h"
#include "kv/cuda/imposed_table.h"
#include "kv/cuda/staged_pages.h"
#include "kv/cuda/step_block.h"
#include "kv/cuda/store_prefill.h"
#include "kv/cuda/transfer/transfer_engine.h"
#include "kv/infinigen/diagnosis.h"
#include "kv/infinigen/shape.h"
#include "kv/infinigen/speculation.h"
#include "kv/page_pool.h"
#include "kv/row_store.h"
#include "kv/sequence_table.h"
#include "kv/step_check.h"
#include "ops/cuda/infinigen.h"

namespace litecache::kv::infinigen {

class CudaInfiniGenCache final : public Cache, public RowStore, public Diagnosis {
 public:
  CudaInfiniGenCache(CudaDevice& device, const Shape& shape, const KvOptions& options,
                     const Profile* profile, const TierBytes& budget,
                     const ImposedSelection* imposed);
  ~CudaInfiniGenCache() override;

  std::string_view policy() const override { return "infinigen"; }
  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return shape_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens);
  }

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return store_.Length(id); }

  void BeginStep(const Step& step) override;
  std::optional<uint64_t> ReplayKey(const Step& step) const override;
  bool WantsPrediction(int64_t layer) const override { return layer >= shape_.dense_layers; }
  // q is free when the stream comes to what is issued after this.
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

  // They wait for the device.
  std::vector<int32_t> Fetched(int64_t layer, int64_t sequence, int64_t head) const override;
  std::vector<int32_t> ChosenChannels(SequenceId id, int64_t layer, int64_t head) const override;

 private:
  static constexpr int64_t kBuffers = Shape::kBuffers;
  // A sequence's tables in device memory.
  struct Sequence {
    SequenceId partial = 0;  // its id in the table of partial keys
    DevicePages store, partial_keys, channels;
    std::array<StagedPages, kBuffers> staged;
    Buffer chosen;               // int32 [sparse layers][kv_heads][rank]
    bool has_chosen = false;     // and every partial key up to partial_'s length
    std::array<Buffer, 2> sums;  // double [sparse layers][kv_heads][width]
    size_t current = 0;          // the sums of the prompt so far; the other: a step's
    bool encodes = false;        // the step in progress ends its prompt and encodes its keys
  };
  // What one layer's speculation works in: layers of one parity share it.
  struct Work {
    ops::cuda::Speculation speculation;
    int32_t* selected = nullptr;        // [pairs][max_rows]
    int32_t* selected_count = nullptr;  // [pairs]
  };

  Sequence& Get(SequenceId id) { return sequences_.at(id); }
  const Sequence& Get(SequenceId id) const { return sequences_.at(id); }
  size_t ParityOf(int64_t layer) const { return static_cast<size_t>(layer % kBuffers); }
  ops::cuda::RowTable Store(int64_t layer) const;
  ops::cuda::RowTable Staging(int64_t layer) const;
  // The new token's row first, those that are fetched behind it.
  ops::cuda::RowTable StagedChoice(int64_t layer) const;
  ops::cuda::PartialLayer Partial(int64_t layer) const;

  void AllocateState(Sequence* sequence);
  void UpdatePages(const StepSequence& part, Sequence* sequence);
  void ReserveWork(int64_t sequences, int64_t context);
  // First in a step's operations.
  void Start(Stream& stream);
  void ChooseAndEncode(Stream& stream);
  void FetchAll(Stream& stream, int64_t layer);
  void Speculate(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, float scale, const MatrixView& out);
  void AddSums(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k);
  void EncodePrompts(Stream& stream, int64_t layer);

  CudaDevice& device_;
  PinnedHost host_;
  const Shape shape_;
  const float alpha_;
  int64_t width_ = 0;
  PagePool device_pool_, host_pool_;
  SequenceTable store_;    // [layers][kv_heads]
  SequenceTable partial_;  // [sparse layers][kv_heads]; lengths: tokens that are encoded
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::unique_ptr<TransferEngine> transfer_;
  std::shared_ptr<const std::function<void()>> check_transfers_;
  Buffer skews_;      // f32 [sparse layers][kv_heads][head_dim][width]
  Buffer constants_;  // int32: lists of the store, of the partial keys, of the staging pages
  std::unique_ptr<Mirror> counters_;        // DeviceHeadCounters [layers][kv_heads]
  std::optional<ImposedRowTable> imposed_;  // of measurements
  StepBlock block_;
  Buffer work_;
  std::array<Work, kBuffers> works_;
  int32_t* ones_ = nullptr;   // [pairs]: every head fetches
  int32_t* slots_ = nullptr;  // [pairs][max_rows]: behind the new row, in order
  uint32_t* keys_ = nullptr;  // [pairs][context]
  int64_t work_sequences_ = 0, work_context_ = 0, max_rows_ = 0;
  Buffer scratch_;  // of attention and of sums, one after another

  // Of the step in progress.
  StepCheck check_;
  std::vector<SequenceTable::Growth> store_growth_, partial_growth_;
  std::vector<StepSequence> decoding_, prefilling_;
  bool choosing_ = false;  // sequences decode their first token after a prompt
  bool started_ = false;
  std::vector<uint8_t> fetched_;  // layers whose rows have been asked for
  int64_t context_ = 0;
  // Counted on the host, from lengths.
  Stats stats_;
  mutable std::vector<HeadCounters> heads_;

  // Marks of link_: a layer's buffer has its rows, by its parity; a prompt's earlier rows.
  static constexpr int kArrived = 0, kFetched = 2, kMarks = 4;
  CudaBranch decisions_, link_;  // last: they wait before what they use is freed
  CudaStorePrefill prefill_;
};

}  // namespace litecache::kv::infinigen
