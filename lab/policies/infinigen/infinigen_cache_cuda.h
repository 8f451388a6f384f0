// Policy `infinigen` on a GPU: kernels handle channels, partial keys and the selection of rows
// (lab/policies/infinigen/ops/infinigen_cuda.h), and a transfer engine moves the selected rows. The
// host only uses lengths, so that a decode step can be replayed as a graph.
//
// Two branches work for a layer while the previous one computes: `decisions` scores and selects,
// `link` copies the rows into the layer's buffer. Data that two layers use at a time exists twice,
// by the layer's parity.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kv/heads/profile.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/staged_pages_cuda.h"
#include "lab/namespaces.h"
#include "lab/policies/common/selecting_cache_cuda.h"
#include "lab/policies/infinigen/diagnosis.h"
#include "lab/policies/infinigen/ops/infinigen_cuda.h"
#include "lab/policies/infinigen/shape.h"

namespace litecache::lab::infinigen {

class CudaInfiniGenCache final : public CudaSelectingCache<Shape>, public Diagnosis {
 public:
  CudaInfiniGenCache(CudaDevice& device, const Shape& shape, const KvOptions& options,
                     const Profile* profile, const TierBytes& budget,
                     const ForcedSelection* forced);
  ~CudaInfiniGenCache() override;

  std::string_view policy() const override { return "infinigen"; }
  void AllocateAhead(const TierBytes& bytes) override {
    device_pool_.AllocateAhead(bytes.device);
    host_pool_.AllocateAhead(bytes.host);
  }
  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return store_.Length(id); }

  void BeginStep(const Step& step) override;
  int64_t PredictionSource(int64_t layer) const override {
    return layer >= shape_.dense_layers ? layer - 1 : -1;
  }
  void Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                float scale) override;
  // Counters of the last step that was waited for.
  Stats GetStats() const override;

  // These wait for the device.
  std::vector<int32_t> Fetched(int64_t layer, int64_t sequence, int64_t head) const override;
  std::vector<int32_t> ChosenChannels(SequenceId id, int64_t layer, int64_t head) const override;

 private:
  static constexpr int64_t kBuffers = Shape::kBuffers;
  // A sequence's tables in device memory.
  struct Sequence {
    SequenceId partial = 0;  // its id in the table of partial keys
    DevicePages store, partial_keys, channels;
    std::array<StagedPages, kBuffers> staged;
    Buffer chosen;  // int32 [sparse layers][kv_heads][rank]
    // Whether `chosen` and every partial key up to partial_'s length are valid.
    bool has_chosen = false;
    std::array<Buffer, 2> sums;  // double [sparse layers][kv_heads][width]
    size_t current = 0;          // index of the sums of the prompt so far; the other one: a step's
    bool encodes = false;        // the step in progress ends its prompt and encodes its keys
  };
  // Work memory of one layer's speculation, shared by the layers of one parity.
  struct Work {
    ops::cuda::Speculation speculation;
    int32_t* selected = nullptr;        // [pairs][max_rows]
    int32_t* selected_count = nullptr;  // [pairs]
  };

  Sequence& Get(SequenceId id) { return sequences_.at(id); }
  const Sequence& Get(SequenceId id) const { return sequences_.at(id); }
  size_t ParityOf(int64_t layer) const { return static_cast<size_t>(layer % kBuffers); }
  // The new token's row first, followed by the fetched ones.
  ops::cuda::RowTable StagedChoice(int64_t layer) const;
  ops::cuda::PartialLayer Partial(int64_t layer) const;

  void AllocateState(Sequence* sequence);
  // Allocates memory for the step's sequences; throws CapacityError.
  void Grow(const Step& step);
  void UpdateTables(const StepSequence& part, Sequence* sequence);
  void ReserveWork(int64_t sequences, int64_t context);

  bool Replayable() const override { return !choosing_; }
  void AddToKey(RecordingKey* key) const override {
    key->Add(work_).Add(work_sequences_).Add(work_context_);
  }
  void BeginDecoding(Stream& stream) override;
  void AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, const ops::Softmax& softmax,
                      const MatrixView& out) override;
  void PromptAttended(Stream& stream, int64_t layer, const MatrixView& q,
                      const MatrixView& k) override;
  void PromptStored(Stream& stream, int64_t layer, const MatrixView& q,
                    const MatrixView& k) override;
  void EndLayers(Stream& stream) override { decisions_.JoinAll(stream); }
  void EndPrompt(size_t index) override;
  void EndDecoding(size_t index) override;

  void ChooseAndEncode(Stream& stream);
  void FetchAll(Stream& stream, int64_t layer);
  void Speculate(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void AddSums(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k);
  void EncodePrompts(Stream& stream, int64_t layer);

  const float alpha_;
  int64_t width_ = 0;
  PagePool device_pool_, host_pool_;
  SequenceTable store_;    // [layers][kv_heads]
  SequenceTable partial_;  // [sparse layers][kv_heads]; lengths: encoded tokens
  std::unordered_map<SequenceId, Sequence> sequences_;
  Buffer skews_;  // f32 [sparse layers][kv_heads][head_dim][width]
  Buffer work_;
  std::array<Work, kBuffers> works_;
  int32_t* slots_ = nullptr;  // [pairs][max_rows]: after the new row, in order
  uint32_t* keys_ = nullptr;  // [pairs][context]
  int64_t max_rows_ = 0;

  // State of the step in progress.
  std::vector<SequenceTable::Growth> store_growth_, partial_growth_;
  bool choosing_ = false;         // some sequences decode their first token after a prompt
  std::vector<uint8_t> fetched_;  // layers whose fetch has been started

  // Marks of link_: a layer's buffer has its rows, by the layer's parity.
  static constexpr int kArrived = 0, kMarks = 2;
  CudaBranch decisions_;  // last: it waits before the memory it uses is freed
};

}  // namespace litecache::lab::infinigen
