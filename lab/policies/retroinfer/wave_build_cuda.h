// Clusters of a wave index made on a GPU (lab/policies/retroinfer/ops/cluster_build_cuda.h), on
// streams beside the step's.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/retroinfer/ops/cluster_build_cuda.h"
#include "lab/policies/retroinfer/wave_build_cpu.h"
#include "lab/policies/retroinfer/wave_sequence.h"

namespace litecache::kv {

// What builds share: streams, so that the rows of some lists come and those of others go while
// others are clustered, and scratch memory for each.
class CudaWaveBuilder {
 public:
  explicit CudaWaveBuilder(CudaDevice& device);

  // What is begun from here on waits for what `stream` has been given.
  void Fork(Stream& stream);
  // Of a part of `count` tokens in `clusters` clusters, of all layers at a time: streams that work
  // for it, lists that one clusters together, and the memory they take.
  static size_t Streams(const RetroShape& shape, int64_t count, int64_t clusters);
  static int64_t ListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters);
  static size_t ScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  // The same of a layer whose rows are on the device: lists of it.
  static int64_t LayerListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters);
  static size_t LayerScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  // All that is ever taken for parts of up to `count` tokens.
  static size_t MostBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  void* Reserve(size_t bytes, size_t stream);
  // Orders of the builds within a step, of all of them together.
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

// Of rows that are in the store, or the ring, all lists are clustered once their step is over
// (Store, Run). A prompt's last chunk has a layer's rows on the device while it attends: its
// clusters are made there, beside the layers after it, and the rows cross the link once, in the
// order of their clusters (BeginInStep, Cluster, StoreLayer).
class CudaWaveBuild final : public WaveBuild {
 public:
  struct Tables {
    ops::cuda::ListPages store, ring, index;
  };
  // tables: when the build begins, in device memory until it ends.
  CudaWaveBuild(CudaWaveBuilder& builder, const RetroShape& shape, WaveSequence* sequence,
                std::vector<WavePart> parts, std::function<Tables()> tables);
  ~CudaWaveBuild() override;

  void Store() override;
  void Run(bool from_ring);
  bool storing() const override { return storing_; }
  void WaitAll() override;
  void Undo() override;

  // ---- within a step that is the prompt's last chunk: tokens [past, past + rows), `stored` of
  // those before them committed to the store ----
  struct Chunk {
    int64_t past = 0, rows = 0, stored = 0;
  };
  // Whether rows that are committed change their places, which a step that fails has to undo.
  bool Reorders(const Chunk& chunk) const { return parts_.front().begin < chunk.stored; }
  // Numbers that BeginInStep() wants room for.
  int64_t OrderCount(const Chunk& chunk) const;
  // Takes all memory that the layers need.
  void BeginInStep(const Chunk& chunk, int32_t* orders);
  bool in_step() const { return orders_ != nullptr; }
  // rows: of all tokens, on the device, lists from 0 on those of the layer. Layers in their order.
  void Cluster(Stream& stream, int64_t layer, const ops::cuda::ListPages& rows);
  void StoreLayer(Stream& link, int64_t layer, const ops::cuda::ListPages& rows);

 private:
  // A part's work but for its source, scratch memory and lists.
  ops::cuda::ClusterBuildWork WorkOf(size_t part) const;
  // What a layer's lists [first, first + lists) have of a part.
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

  // Within a step.
  Chunk chunk_;
  int32_t* orders_ = nullptr;  // of each part [order_slots()][tokens]
  bool reorders_ = false;
  int64_t clustered_layers_ = 0, stored_layers_ = 0;
};

}  // namespace litecache::kv
