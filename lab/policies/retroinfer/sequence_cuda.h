// A sequence of policy retroinfer as a GPU's kernels see it: its pages, where its clusters begin
// and which of them are cached.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/pages/sequence_table.h"
#include "kv/pages/staged_pages_cuda.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "lab/policies/retroinfer/shape.h"
#include "lab/policies/retroinfer/wave_sequence.h"
#include "ops/step/step_cuda.h"

namespace litecache::kv {

// Tables of this policy under the names that a step's sequences have for them.
inline constexpr ops::cuda::TableId kWaveRows =
    ops::cuda::kSlots;  // steady zone, block cache, execution buffer
inline constexpr ops::cuda::TableId kWaveIndex = ops::cuda::kMetadata;
inline constexpr ops::cuda::TableId kWaveStaging[RetroShape::kStagingBuffers] = {
    ops::cuda::kStaging, ops::cuda::kLabels};

struct CudaWaveSequence final : WaveSequence {
  using WaveSequence::WaveSequence;

  // Pages of a list's rows that the steady zone has; the block cache's come behind them.
  static int64_t SteadyRoom(const RetroShape& shape) {
    return shape.pages.BlocksFor(shape.sink + shape.ring());
  }
  // Follow what the host has: pages, of `pool` and of the store; begins and the block caches. Until
  // the next step.
  void SendPages(CudaDevice& gpu, const PagePool& pool, const RetroShape& shape,
                 const SequenceTable& store_table, const SequenceTable& index_table, SequenceId id);
  void SendTables(CudaDevice& gpu, const RetroShape& shape);

  // The pages, under their names.
  void PutPages(ops::cuda::StepSequence* target) const;
  ops::cuda::WaveSequence View(const RetroShape& shape) const;

  DevicePages store, index_pages, rows;
  StagedPages staged[RetroShape::kStagingBuffers];
  // Pages may be others' as well: they can change without their number changing.
  bool forked = false;
  // The block caches are not what the device's tables say.
  bool stale_tables = true;

 private:
  // begins [lists][clusters], first blocks [lists][clusters], next blocks [lists][blocks].
  Buffer tables_;
  int64_t clusters_ = 0, blocks_ = 0;  // that the tables are of: strides
  // What the pages' lists were made of.
  int64_t steady_pages_ = -1, cache_pages_ = -1, buffer_pages_ = -1;
};

}  // namespace litecache::kv
