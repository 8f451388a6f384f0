// Policy `pqcache` on a GPU. Kernels score, select and look up the selected rows in a table of the
// cached blocks (lab/policies/pqcache/ops/pqcache_cuda.h), and a transfer engine fetches the missed
// ones. The host counts the blocks' uses between two steps, and admitted blocks are transferred at
// the beginning of the next step. No layer therefore waits for the host, and a decode step can be
// replayed as a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/cuda/copy_batch.h"
#include "kv/pages/staged_pages_cuda.h"
#include "lab/namespaces.h"
#include "lab/policies/common/selecting_cache_cuda.h"
#include "lab/policies/pqcache/diagnosis.h"
#include "lab/policies/pqcache/ops/pqcache_cuda.h"
#include "lab/policies/pqcache/sequences.h"
#include "lab/policies/pqcache/shape.h"

namespace litecache::lab::pqcache {

class LayerEvent;

// Size of a sequence's table of cached blocks, one entry per block; a power of two.
int64_t BlocksOf(const Shape& shape, int64_t tokens);

class CudaPqCache final : public CudaSelectingCache<Shape>, public Diagnosis {
 public:
  CudaPqCache(CudaDevice& device, const Shape& shape, const KvOptions& options,
              const TierBytes& budget, const ForcedSelection* forced);
  ~CudaPqCache() override;

  std::string_view policy() const override { return "pqcache"; }
  void AllocateAhead(const TierBytes& bytes) override { sequences_.AllocateAhead(bytes); }
  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return sequences_.store().Length(id); }

  void BeginStep(const Step& step) override;
  // Counters of the last step that was waited for.
  Stats GetStats() const override;

  // Diagnosis; waits for the device.
  Selected SelectedRows(int64_t sequence, int64_t head) override;
  int64_t RowBudget(SequenceId id) override { return sequences_.Get(id).rows; }
  bool indexed(SequenceId id) override { return sequences_.Get(id).index != nullptr; }
  std::vector<float> Centroids(SequenceId id, int64_t layer, int64_t head) override;
  std::vector<uint8_t> Codes(SequenceId id, int64_t layer, int64_t head, int64_t tokens) override;
  int64_t SlotOf(SequenceId id, int64_t layer, int64_t block) override;

 private:
  // The planned state of a layer's block cache on the device.
  struct LayerBlocks {
    std::vector<int64_t> block_of;           // [slots], -1: none
    std::vector<int64_t> admitted, changed;  // admitted blocks, and all blocks whose slot changed
    // Number of those, from the front, sent with this step.
    size_t sending_admitted = 0, sending_changed = 0;
  };
  // State of a sequence besides pqcache::Sequence.
  struct Tables {
    DevicePages store, rows, codes, codebooks;
    StagedPages staged[2];
    int64_t window_pages = -1, cache_pages = -1, staged_pages = -1;  // number of each in `rows`
    bool filled = false;  // whether windows and codes have been filled
    Buffer slots;         // int32 [layers][blocks]
    int64_t blocks = 0;
    std::vector<LayerBlocks> layers;
    // Uses of the last step that are not counted so far: its past, and the sequence's index in it.
    int64_t counting_past = -1, counting_index = 0;
  };

  Tables& TablesOf(SequenceId id) { return tables_.at(id); }
  ops::cuda::PqLayer Layer(int64_t layer) const;

  // ---- pq_cache_cuda.cc: sequences, their tables, and a step's plan ----
  void ForgetPrompt(Tables* tables);
  int64_t StagingFor(const StepSequence& part) const;
  void UpdateTables(const StepSequence& part, Tables* tables);
  void UpdateRows(const Sequence& sequence, Tables* tables);
  void ReserveWork(int64_t sequences, int64_t context, int64_t rows);
  void FillBlock(const Step& step);
  void FillParameters(const StepSequence& part, int64_t index);
  void EndPrompt(size_t index) override;
  void EndDecoding(size_t index) override;
  bool Replayable() const override { return !filling_; }
  void AddToKey(RecordingKey* key) const override;

  // ---- pq_blocks_cuda.cc: the block cache, counted between two steps ----
  void CountUses(Sequence* sequence, Tables* tables, int64_t layer, int64_t past,
                 const int32_t* uses);
  void CountLastStep();
  void UpdateSlots(const StepSequence& part, Tables* tables);
  void ListUpdates();
  void ForgetUpdates(Tables* tables);
  size_t UsesBytes() const;
  int32_t* Begins() const { return updates_.as<int32_t>(); }
  int32_t* ChangeCount() const { return Begins() + shape_.layout.layers + 1; }
  ops::cuda::PqAdmission* Admissions() const;
  ops::cuda::PqChange* Changes() const;
  ops::cuda::PqUpdates Updates() const;

  // ---- pq_decode_cuda.cc ----
  void BeginDecoding(Stream& stream) override;
  void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, const ops::Softmax& softmax,
                      const MatrixView& out) override;
  void EndLayers(Stream& stream) override;

  // ---- pq_prompt_cuda.cc: prompts ----
  void PromptAttended(Stream& stream, int64_t layer, const MatrixView&, const MatrixView&) override;
  void PromptStored(Stream& stream, int64_t layer, const MatrixView&, const MatrixView&) override;
  void StartClustering(Stream& stream, int64_t layer);
  void FillCodes(Stream& stream, int64_t layer, const StepSequence& part);

  std::unordered_map<SequenceId, Tables> tables_;
  Sequences sequences_;
  StepBlock new_rows_;                  // the decode sequences, with the new row's position as past
  std::unique_ptr<Mirror> parameters_;  // PqSequence [work_sequences_], followed by SelectRange
  std::unique_ptr<Mirror> uses_;        // int32 [layers][sequences][blocks]
  Buffer updates_;                      // pinned: begins, count, admissions, changes
  Buffer work_;
  ops::cuda::PqLayer work_arrays_;  // pointers into the work memory
  int32_t* device_begins_ = nullptr;
  ops::cuda::PqAdmission* device_admissions_ = nullptr;
  int64_t work_rows_ = 0, work_blocks_ = 0;
  Buffer packed_;  // pinned: a layer's codes and centroids
  CudaCopyBatch copies_;

  // State of the step in progress.
  std::vector<std::shared_ptr<Index>> growing_;  // [prefilling]: indices of ending prompts
  std::shared_ptr<LayerEvent> stored_;           // the previous layer's rows are in the store
  bool filling_ = false;

  // Marks of link_: a layer's missed rows have arrived.
  static constexpr int kArrived = 0, kMarks = 1;
};

}  // namespace litecache::lab::pqcache
