// Policy `retroinfer` on a GPU (lab/policies/retroinfer/README.md, "On a GPU"). Selecting clusters,
// looking them up in the block cache, fetching missing rows, estimating and attending are kernels
// (lab/policies/retroinfer/ops/wave_index_cuda.h) that never wait for the host. CPU threads
// maintain the LRU order of the caches, one layer later (answers_cuda.h): the rows that a layer's
// caches admit are copied at the beginning of the next layer, before that layer's rows arrive.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "kv/row_store.h"
#include "kv/step/step_block_cuda.h"
#include "lab/forced/forced_selection.h"
#include "lab/forced/forced_table_cuda.h"
#include "lab/namespaces.h"
#include "lab/policies/common/store_prefill_cuda.h"
#include "lab/policies/retroinfer/answers_cuda.h"
#include "lab/policies/retroinfer/ops/force_clusters_cuda.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "lab/policies/retroinfer/sequence_cuda.h"
#include "lab/policies/retroinfer/wave_build_cuda.h"
#include "lab/policies/retroinfer/wave_cache.h"
#include "lab/policies/retroinfer/work_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::lab {

// Constructed before the cache, whose store is in it.
struct RetroHost {
  explicit RetroHost(CudaDevice& device) : host(device), store(device, ReadBy::kKernels) {}
  PinnedHost host, store;
};

class CudaRetroCache final : private RetroHost,
                             public WaveCache,
                             public RowStore,
                             private ArrangedRows {
 public:
  // forced: null, or the clusters to select.
  CudaRetroCache(CudaDevice& device, const RetroShape& shape, const TierBytes& budget,
                 const ForcedSelection* forced);
  ~CudaRetroCache() override;

  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;

  void BeginStep(const Step& step) override;
  std::optional<uint64_t> ReplayKey(const Step& step) const override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;
  void Settle() override;

 private:
  CudaWaveSequence& Of(WaveSequence& sequence) { return static_cast<CudaWaveSequence&>(sequence); }
  CudaWaveSequence& Of(SequenceId id) { return Of(Get(id)); }

  std::unique_ptr<WaveSequence> NewSequence(const WaveSequence* parent) override;
  std::unique_ptr<WaveBuild> NewBuild(SequenceId id, WaveSequence* sequence,
                                      std::vector<WavePart> parts) override;
  void RunBuild(SequenceId id, WaveSequence* sequence, bool from_ring) override;
  int64_t MissingStaging(const StepSequence& part) const override;
  void TakeStaging(const StepSequence& part) override;

  void SendPages(SequenceId id, CudaWaveSequence* sequence) {
    sequence->SendPages(gpu_, device_, shape_, store_, index_, id);
  }
  ops::cuda::RowTable Store(int64_t layer) const;
  ops::cuda::RowTable Rows(int64_t layer) const;
  // The steady zone: rows of tokens.
  ops::cuda::RowTable Steady(int64_t layer) const;
  ops::cuda::RowTable Staging(int64_t layer) const;
  ops::cuda::WaveLayer Layer(int64_t layer) const;

  void BeginDecoding();
  void BeginFilling(size_t decoding, int64_t* next);
  void BeginPrompts();
  // For a prompt's last chunk: clusters are made within the step, and rows are stored in their
  // order.
  void BeginBuilds();
  bool Arrange(Stream& stream, int64_t layer, int64_t chunk) override;
  void Store(CudaBranch& link, int64_t layer, int64_t chunk) override;
  CudaWaveBuild* BuildInStep(int64_t chunk);
  // After a failed step.
  void UndoBuilds();
  ops::cuda::ListPages StagedRows(int64_t layer, int64_t chunk);
  void Start(Stream& stream);
  void Fill(Stream& stream, int64_t layer);
  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void Choose(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  // On the link: missing rows, and the rows that a layer's caches admit.
  void Fetch(const ops::cuda::WaveLayer& layer);
  void Admit(int64_t layer);
  void Note(int64_t layer, std::span<const WaveUpdate> updates, const ops::cuda::WaveLayer& told);
  // Call after the stream has been waited for: throws DeviceError if the device timed out.
  void CheckAnswers();

  CudaDevice& gpu_;
  Buffer lists_;  // int32 [layers][kv_heads]: a head's list is its index
  std::optional<ForcedTable<uint16_t>> forced_;
  RetroWork work_;
  WaveAnswers answers_;
  std::shared_ptr<const std::function<void()>> check_answers_;

  // Bytes in `waves_` before the sequences: the number of the step's first layer.
  static constexpr size_t kWaveHeader = 64;

  // State of the step in progress.
  StepBlock block_;
  StepBlock fill_;                 // two ranges of tokens per sequence to be filled
  std::unique_ptr<Mirror> waves_;  // ops::cuda::WaveSequence, for decoding sequences
  int64_t wave_room_ = 0;
  ops::cuda::WaveShape wave_;
  int64_t context_ = 0;
  bool started_ = false, filling_ = false;
  std::vector<uint8_t> fills_;  // per sequence in decoding_
  bool choosing_ = false;       // some sequence has clusters
  int64_t waiting_ = 0;         // layers whose answer the device waits for, if not recorded
  CUstream_st* issued_on_ = nullptr;

  CudaWaveBuilder builder_;
  std::vector<CudaWaveBuild*> in_step_;  // until the step ends
  static constexpr int kArrived = 0, kFetched = 1;
  static constexpr int kMarks = kFetched + CudaStorePrefill::kMarks;
  CudaBranch link_;  // transfers of rows
  CudaStorePrefill prefill_;
};

}  // namespace litecache::lab
