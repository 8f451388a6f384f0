// Clusters of a wave index made on a GPU (ops/cuda/retroinfer/cluster_build.h), on streams beside
// the step's.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "kv/retroinfer/wave_build.h"
#include "kv/retroinfer/wave_sequence.h"
#include "ops/cuda/retroinfer/cluster_build.h"

namespace litecache::kv {

// What builds share: streams, so that the rows of some lists come and those of others go while
// others are clustered, and scratch memory for each.
class CudaWaveBuilder {
 public:
  explicit CudaWaveBuilder(CudaDevice& device);

  // What is begun from here on waits for what `stream` has been given.
  void Fork(Stream& stream);
  // Of a part of `count` tokens in `clusters` clusters: streams that work for it, lists that one
  // clusters together, and the memory they take.
  static size_t Streams(const RetroShape& shape, int64_t count, int64_t clusters);
  static int64_t ListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters);
  static size_t ScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  // Of all streams, for parts of up to `count` tokens.
  static size_t MostBytes(const RetroShape& shape, int64_t count, int64_t clusters);
  void* Reserve(size_t bytes, size_t stream);

  static constexpr size_t kStreams = 4;
  CudaBranch& branch(size_t i) { return *branches_[i]; }
  CudaDevice& device() { return device_; }

 private:
  CudaDevice& device_;
  std::array<Buffer, kStreams> scratch_;
  std::array<std::unique_ptr<CudaBranch>, kStreams> branches_;  // last: they use the memory
};

class CudaWaveBuild final : public WaveBuild {
 public:
  struct Tables {
    ops::cuda::ListPages store, ring, index;
  };
  // tables: when the build begins, in device memory until it ends.
  CudaWaveBuild(CudaWaveBuilder& builder, const RetroShape& shape, WaveSequence* sequence,
                std::vector<WavePart> parts, std::function<Tables()> tables);
  ~CudaWaveBuild() override;

  void Store() override { Run(/*from_ring=*/false); }
  void Run(bool from_ring);
  bool storing() const override { return begins_ != nullptr; }
  void WaitAll() override;

 private:
  CudaWaveBuilder& builder_;
  const RetroShape& shape_;
  WaveSequence* sequence_;
  std::function<Tables()> tables_;
  std::unique_ptr<Mirror> begins_;  // int32, of each part [lists][clusters]
  bool running_ = false;
};

}  // namespace litecache::kv
