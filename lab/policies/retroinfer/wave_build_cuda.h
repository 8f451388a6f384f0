// Builds the clusters of a wave index on a GPU (lab/policies/retroinfer/ops/cluster_build_cuda.h),
// on streams in parallel with the step's.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/cluster_build_cuda.h"
#include "lab/policies/retroinfer/wave_build_cpu.h"
#include "lab/policies/retroinfer/wave_sequence.h"

namespace litecache::lab {

// Shared by all builds: streams, so that the rows of some lists are transferred while others are
// clustered, and scratch memory for each.
class CudaWaveBuilder {
 public:
  explicit CudaWaveBuilder(CudaDevice& device);

  // Builds started from here on wait for the work submitted to `stream`.
  void Fork(Stream& stream);
  // For a part of `count` tokens in `clusters` clusters, over all layers: number of streams, lists
  // that one stream clusters together, and the memory they take.
  static size_t Streams(const RetroShape& shape, int64_t count, int64_t clusters);
  static int64_t ListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters);
  static size_t ScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  // The same for a layer whose rows are on the device: number of its lists.
  static int64_t LayerListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters);
  static size_t LayerScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  // Maximum memory for parts of up to `count` tokens.
  static size_t MostBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  void* Reserve(size_t bytes, size_t stream);
  // Orders of all builds within a step.
  int32_t* ReserveOrders(int64_t count);

  static constexpr size_t kStreams = 4;
  CudaBranch& branch(size_t i) { return *branches_[i]; }
  CudaDevice& device() { return device_; }

 private:
  CudaDevice& device_;
  std::array<Buffer, kStreams> scratch_;
  Buffer orders_;
  std::array<std::unique_ptr<CudaBranch>, kStreams> branches_;  // last: they use the memory
};

// Two modes. Rows in the store or the ring: all lists are clustered after their step (Store, Run).
// A prompt's last chunk, which has a layer's rows on the device while it attends: clusters are made
// there, in parallel with later layers, and the rows cross the link once, in cluster order
// (BeginInStep, Cluster, StoreLayer).
class CudaWaveBuild final : public WaveBuild {
 public:
  struct Tables {
    ops::cuda::ListPages store, ring, index;
  };
  // tables: copied to device memory when the build begins, until it ends.
  CudaWaveBuild(CudaWaveBuilder& builder, const RetroShape& shape, WaveSequence* sequence,
                std::vector<WavePart> parts, std::function<Tables()> tables);
  ~CudaWaveBuild() override;

  void Store() override;
  void Run(bool from_ring);
  bool storing() const override { return storing_; }
  void WaitAll() override;
  void Undo() override;

  // ---- within a step that is the prompt's last chunk: tokens [past, past + rows); `stored` of
  // those before are committed to the store ----
  struct Chunk {
    int64_t past = 0, rows = 0, stored = 0;
  };
  // Whether committed rows change their places, which a failed step has to undo.
  bool Reorders(const Chunk& chunk) const { return parts_.front().begin < chunk.stored; }
  // Number of order entries that BeginInStep() needs.
  int64_t OrderCount(const Chunk& chunk) const;
  // Allocates all memory that the layers need.
  void BeginInStep(const Chunk& chunk, int32_t* orders);
  bool in_step() const { return orders_ != nullptr; }
  // rows: of all tokens, on the device; the layer's lists start at 0. Call for the layers in order.
  void Cluster(Stream& stream, int64_t layer, const ops::cuda::ListPages& rows);
  void StoreLayer(Stream& link, int64_t layer, const ops::cuda::ListPages& rows);

 private:
  // A part's work except its source, scratch memory and lists.
  ops::cuda::ClusterBuildWork WorkOf(size_t part) const;
  // The work of a part for a layer's lists [first, first + lists).
  ops::cuda::ClusterBuildWork LayerWork(size_t part, int64_t layer, int64_t first, int64_t lists,
                                        const ops::cuda::ListPages& rows) const;
  int64_t tokens(size_t part) const { return parts_[part].end - parts_[part].begin; }
  int64_t order_slots() const {
    return reorders_ ? shape_.lists : RetroShape::kStagingBuffers * shape_.layout.kv_heads;
  }
  int32_t* OrderOf(size_t part, int64_t list) const;
  int32_t* BeginsOf(size_t part, int64_t list) const;
  void CreateBegins();
  void* ReserveLayer(size_t part) const;

  CudaWaveBuilder& builder_;
  const RetroShape& shape_;
  WaveSequence* sequence_;
  std::function<Tables()> make_tables_;
  Tables tables_;
  std::unique_ptr<Mirror> begins_;  // int32, of each part [lists][clusters]
  size_t begins_count_ = 0;
  bool running_ = false;  // kernels may be at work
  bool storing_ = false;

  // State within a step.
  Chunk chunk_;
  int32_t* orders_ = nullptr;  // of each part [order_slots()][tokens]
  bool reorders_ = false;
  int64_t clustered_layers_ = 0, stored_layers_ = 0;
};

}  // namespace litecache::lab
