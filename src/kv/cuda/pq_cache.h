// Policy `pqcache` on a GPU. Kernels score, select and look the selected rows up in a table of the
// cached blocks (ops/cuda/pqcache.h), and a transfer engine brings the missed ones; the host counts
// the blocks' uses between two steps, and what it lets in travels at the next step's begin. So the
// host is waited for in no layer, and a decode step can be replayed as a graph.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "kv/cache.h"
#include "kv/cuda/device_pages.h"
#include "kv/cuda/imposed_table.h"
#include "kv/cuda/staged_pages.h"
#include "kv/cuda/step_block.h"
#include "kv/cuda/store_prefill.h"
#include "kv/cuda/transfer/transfer_engine.h"
#include "kv/pqcache/diagnosis.h"
#include "kv/pqcache/sequences.h"
#include "kv/pqcache/shape.h"
#include "kv/row_store.h"
#include "kv/step_check.h"
#include "ops/cuda/pqcache.h"

namespace litecache::kv::pqcache {

class LayerEvent;

class CudaPqCache final : public Cache, public RowStore, public Diagnosis {
 public:
  CudaPqCache(CudaDevice& device, const Shape& shape, const KvOptions& options,
              const TierBytes& budget, const ImposedSelection* imposed);
  ~CudaPqCache() override;

  std::string_view policy() const override { return "pqcache"; }
  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override { return shape_.BytesFor(tokens); }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens);
  }

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return sequences_.store().Length(id); }

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

  // Diagnosis; waits for the device.
  Selected SelectedRows(int64_t sequence, int64_t head) override;
  int64_t RowBudget(SequenceId id) override { return sequences_.Get(id).rows; }
  bool indexed(SequenceId id) override { return sequences_.Get(id).index != nullptr; }
  std::vector<float> Centroids(SequenceId id, int64_t layer, int64_t head) override;
  std::vector<uint8_t> Codes(SequenceId id, int64_t layer, int64_t head, int64_t tokens) override;
  int64_t SlotOf(SequenceId id, int64_t layer, int64_t block) override;

 private:
  // A layer's block cache as the device will know it.
  struct LayerBlocks {
    std::vector<int64_t> block_of;           // [slots], -1: none
    std::vector<int64_t> admitted, changed;  // blocks that came in, and all whose slot changed
    size_t sending_admitted = 0, sending_changed = 0;  // of those, the first ones: with this step
  };
  // What a sequence has beside pqcache::Sequence.
  struct Tables {
    DevicePages store, rows, codes, codebooks;
    StagedPages staged[2];
    int64_t window_pages = -1, cache_pages = -1, staged_pages = -1;  // that `rows` has
    bool filled = false;  // windows and codes hold what belongs there
    Buffer slots;         // int32 [layers][blocks]
    int64_t blocks = 0;
    std::vector<LayerBlocks> layers;
    // Uses of the last step that are not counted yet: its past, and the sequence's place in it.
    int64_t counting_past = -1, counting_index = 0;
  };

  Tables& TablesOf(SequenceId id) { return tables_.at(id); }
  int64_t StagedRows(const Sequence& sequence, int64_t n) const {
    return sequence.index != nullptr ? sequence.rows : n;
  }
  ops::cuda::RowTable Store(int64_t layer) const;
  ops::cuda::RowTable PrefillStaging(int64_t layer) const;
  ops::cuda::PqLayer Layer(int64_t layer) const;
  int32_t* Begins() const { return updates_.as<int32_t>(); }
  int32_t* ChangeCount() const { return Begins() + shape_.layout.layers + 1; }
  ops::cuda::PqAdmission* Admissions() const;
  ops::cuda::PqChange* Changes() const;
  ops::cuda::PqUpdates Updates() const;
  int64_t StagingFor(const StepSequence& part) const;
  void ForgetPrompt(Tables* tables);
  void UpdateTables(const StepSequence& part, Tables* tables);
  void UpdateSlots(const StepSequence& part, Tables* tables);
  void ReserveWork(int64_t sequences, int64_t context, int64_t rows);
  void FillBlocks(const Step& step);
  void Count(Sequence* sequence, Tables* tables, int64_t layer, int64_t past, const int32_t* uses);
  void CountLastStep();
  void ListUpdates();
  void FillCodes(Stream& stream, int64_t layer, const StepSequence& part);
  void Start(Stream& stream);
  void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, float scale, const MatrixView& out);
  void StartClustering(Stream& stream, int64_t layer);

  CudaDevice& device_;
  PinnedHost host_;
  const Shape shape_;
  std::unordered_map<SequenceId, Tables> tables_;
  Sequences sequences_;
  std::unique_ptr<TransferEngine> transfer_;
  std::shared_ptr<const std::function<void()>> check_transfers_;
  Buffer constants_;                        // int32 [layers * kv_heads]: a head's list is its index
  std::unique_ptr<Mirror> counters_;        // DeviceHeadCounters [layers][kv_heads]
  std::optional<ImposedRowTable> imposed_;  // of measurements
  StepBlock block_;
  StepBlock new_rows_;                  // the decode sequences, their past the new row's place
  std::unique_ptr<Mirror> parameters_;  // PqSequence [work_sequences_], SelectRange behind them
  std::unique_ptr<Mirror> uses_;        // int32 [layers][work_sequences_][work_blocks_]
  Buffer updates_;                      // pinned: begins, count, admissions, changes
  Buffer work_;
  ops::cuda::PqLayer work_arrays_;  // its pointers
  int32_t* ones_ = nullptr;         // [pairs]: every head moves its rows
  int32_t* device_begins_ = nullptr;
  ops::cuda::PqAdmission* device_admissions_ = nullptr;
  int64_t work_sequences_ = 0, work_context_ = 0, work_rows_ = 0, work_blocks_ = 0;
  Buffer scratch_;  // of selection and attention, one after another
  Buffer packed_;   // pinned: a layer's codes and centroids
  CudaCopyBatch copies_;

  // Of the step in progress.
  StepCheck check_;
  std::vector<StepSequence> decoding_, prefilling_;
  std::vector<std::shared_ptr<Index>> growing_;  // [prefilling]: indices of prompts that end
  std::shared_ptr<LayerEvent> stored_;           // the layer before: its rows are in the store
  bool filling_ = false, started_ = false;
  int64_t context_ = 0;
  // Counted on the host, from lengths.
  Stats stats_;
  mutable std::vector<HeadCounters> heads_;

  // Marks of link_: a layer's missed rows are there; a prompt's earlier rows.
  static constexpr int kArrived = 0, kFetched = 1, kMarks = 3;
  CudaBranch link_;  // last: it waits before what it uses is freed
  CudaStorePrefill prefill_;
};

}  // namespace litecache::kv::pqcache
