// The data of a policy retroinfer sequence for GPU kernels: its pages, the first rows of its
// clusters, and which of them are cached.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/pages/sequence_table.h"
#include "kv/pages/staged_pages_cuda.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_sequence.h"
#include "ops/step/step_cuda.h"

namespace litecache::lab {

// The table ids of a step's sequences that this policy uses.
inline constexpr ops::cuda::TableId kWaveRows =
    ops::cuda::kSlots;  // steady zone, block cache, execution buffer
inline constexpr ops::cuda::TableId kWaveIndex = ops::cuda::kMetadata;
inline constexpr ops::cuda::TableId kWaveStaging[RetroShape::kStagingBuffers] = {
    ops::cuda::kStaging, ops::cuda::kLabels};

struct CudaWaveSequence final : WaveSequence {
  using WaveSequence::WaveSequence;

  // Number of pages in a list for the steady zone; those of the block cache follow.
  static int64_t SteadyRoom(const RetroShape& shape) {
    return shape.pages.BlocksFor(shape.sink + shape.ring());
  }
  // Update the device's copies: pages, of `pool` and of the store; first rows and the block caches.
  // Valid until the next step.
  void SendPages(CudaDevice& gpu, const PagePool& pool, const RetroShape& shape,
                 const SequenceTable& store_table, const SequenceTable& index_table, SequenceId id);
  void SendTables(CudaDevice& gpu, const RetroShape& shape);

  // Sets the page tables of `target`.
  void PutPages(ops::cuda::StepSequence* target) const;
  ops::cuda::WaveSequence View(const RetroShape& shape) const;

  DevicePages store, index_pages, rows;
  StagedPages staged[RetroShape::kStagingBuffers];
  // Pages may be shared: they can change while their number stays the same.
  bool forked = false;
  // The device's tables differ from the block caches.
  bool stale_tables = true;

 private:
  // begins [lists][clusters], first blocks [lists][clusters], next blocks [lists][blocks].
  Buffer tables_;
  int64_t clusters_ = 0, blocks_ = 0;  // sizes of the tables: strides
  // Sizes for which the lists of pages were made.
  int64_t steady_pages_ = -1, cache_pages_ = -1, buffer_pages_ = -1;
};

}  // namespace litecache::lab
