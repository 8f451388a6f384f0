// Policy `retroinfer` on a GPU (src/kv/retroinfer/README.md, "On a GPU"). Choosing clusters,
// looking them up in the block cache, bringing the rows that miss, estimating and attending are
// kernels (ops/cuda/wave_index.h) that wait for nothing on the host. CPU threads keep the caches'
// order of use, a layer behind: what a layer has chosen is told through mapped memory, and what its
// caches take over is copied while the next layer chooses, before that one's rows come.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/background_threads.h"
#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "kv/cuda/device_pages.h"
#include "kv/cuda/staged_pages.h"
#include "kv/cuda/step_block.h"
#include "kv/cuda/store_prefill.h"
#include "kv/cuda/wave_build.h"
#include "kv/cuda/wave_update.h"
#include "kv/retroinfer/wave_cache.h"
#include "kv/row_store.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/wave_index.h"

struct CUstream_st;

namespace litecache::kv {

// Before the cache itself, whose store lies in it.
struct RetroHost {
  explicit RetroHost(CudaDevice& device) : host(device) {}
  PinnedHost host;
};

class CudaRetroCache final : private RetroHost, public WaveCache, public RowStore {
 public:
  CudaRetroCache(CudaDevice& device, const RetroShape& shape, const TierBytes& budget);
  ~CudaRetroCache() override;

  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;

  void BeginStep(const Step& step) override;
  std::optional<uint64_t> ReplayKey(const Step& step) const override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;
  void Settle() override;

 private:
  // A sequence's tables in device memory.
  struct Sequence final : WaveSequence {
    using WaveSequence::WaveSequence;
    DevicePages store, index, rows;
    StagedPages staged[RetroShape::kStagingBuffers];
    // begins [lists][clusters], first blocks [lists][clusters], next blocks [lists][blocks].
    Buffer tables;
    int64_t table_clusters = 0, table_blocks = 0;  // strides
    int64_t known_clusters = 0;                    // that the tables are of
    bool stale_tables = true;
    // What the pages' lists were made of.
    int64_t store_blocks = -1, index_blocks = -1, steady_pages = -1, cache_pages = -1,
            buffer_pages = -1;
    // Pages may be others' as well: they can change without their number changing.
    bool forked = false;
  };
  Sequence& Of(WaveSequence& sequence) { return static_cast<Sequence&>(sequence); }
  Sequence& Of(SequenceId id) { return Of(Get(id)); }

  std::unique_ptr<WaveSequence> NewSequence(const WaveSequence* parent) override;
  std::unique_ptr<WaveBuild> NewBuild(SequenceId id, WaveSequence* sequence,
                                      std::vector<WavePart> parts) override;
  void RunBuild(SequenceId id, WaveSequence* sequence, bool from_ring) override;
  int64_t MissingStaging(const StepSequence& part) const override;
  void TakeStaging(const StepSequence& part) override;

  int64_t steady_room() const {  // pages a list
    return shape_.pages.BlocksFor(shape_.sink + shape_.ring());
  }
  void UpdatePages(SequenceId id, Sequence* sequence);
  void UpdateTables(Sequence* sequence);
  void ReserveWork();
  ops::cuda::RowTable Store(int64_t layer) const;
  ops::cuda::RowTable Rows(int64_t layer) const;
  // The steady zone: rows of tokens.
  ops::cuda::RowTable Steady(int64_t layer) const;
  ops::cuda::RowTable Staging(int64_t layer) const;
  ops::cuda::WaveLayer Layer(int64_t layer) const;

  void Start(Stream& stream);
  void Fill(Stream& stream, int64_t layer);
  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, float scale, const MatrixView& out);
  // On the link: what layer `layer`'s caches take over.
  void Admit(int64_t layer);
  // Answers the layers before `end` that have not been answered, when they have chosen.
  void Serve(int64_t end);
  void WaitForChoices(int64_t layer);
  void Update(int64_t layer);
  void Answer(int64_t layer);
  // After an update that failed: its caches begin anew.
  void ForgetCaches();
  void NoteChoices(int64_t layer);
  // After the stream has been waited for: throws DeviceError where the device waited in vain.
  void CheckAnswers();

  CudaDevice& gpu_;
  Buffer lists_;  // int32 [layers][kv_heads]: a head's list is its index
  BackgroundThreads threads_;
  std::shared_ptr<TaskGroup> updating_ = std::make_shared<TaskGroup>();

  // Of the step in progress.
  StepBlock block_;
  StepBlock fill_;                 // two ranges of tokens of each sequence to be filled
  std::unique_ptr<Mirror> waves_;  // ops::cuda::WaveSequence, of the decoding ones
  int64_t wave_room_ = 0;
  ops::cuda::WaveShape wave_;
  int64_t context_ = 0;
  bool started_ = false, filling_ = false;
  std::vector<uint8_t> fills_;                   // of decoding_
  bool choosing_ = false;                        // some sequence has clusters
  uint64_t next_number_ = 0, first_number_ = 0;  // of layers (ops::cuda::WaveMailbox)
  int64_t served_ = 0;                           // layers that have been answered
  int64_t waiting_ = 0;  // layers whose answer the device waits for, where it was not recorded
  CUstream_st* issued_on_ = nullptr;
  std::vector<WaveUpdate> updates_;  // of the pairs
  size_t update_count_ = 0;

  // Work memory; room for so much.
  struct Room {
    int64_t pairs = 0, clusters = 0, ranked = 0, chosen = 0, rows = 0, blocks = 0;
  };
  struct Work {
    ops::cuda::WaveLayer layer;  // its work arrays
    int32_t* ones = nullptr;     // [pairs]
    float* log_sums = nullptr;   // [sequences][q_heads]
  };
  // Where the arrays lie in `memory`; their bytes.
  static size_t PlaceWork(const RetroShape& shape, const Room& room, std::byte* memory, Work* work);
  Room room_;
  Work work_;
  uint64_t work_serial_ = 0;  // of all memory below, and of waves_
  Buffer work_memory_, scratch_;
  // Pinned: by the layer's parity what is told and answered; the mailbox.
  std::array<Buffer, 2> told_, answers_;
  std::array<ops::cuda::WaveAdmissions, 2> admissions_;
  Buffer mailbox_;
  std::shared_ptr<const std::function<void()>> check_answers_;

  CudaWaveBuilder builder_;
  static constexpr int kArrived = 0, kFetched = 1, kMarks = 3;
  CudaBranch link_;  // rows on their way
  CudaStorePrefill prefill_;
};

}  // namespace litecache::kv
