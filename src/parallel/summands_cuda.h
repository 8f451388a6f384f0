// Sums over GPUs that can read each other's memory: one kernel, by windows of NCCL's device API
// (NCCL 2.28 and later), without a copy between the ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/epilogue.h"

struct ncclWindow_vidmem;

namespace litecache::parallel {

// Values of a block of the kernel, and the most blocks: one row of 4,096 values takes one, and each
// of 256 or more rows has a share of all.
inline constexpr int64_t kSumBlock = 4096, kMostSumBlocks = 256;
inline constexpr int kMostSumRanks = 64;

// How the blocks of all ranks' kernels wait for one another. NCCL's own barrier does the same, but
// nothing ends it when a rank has ended.
struct SumMeetings {
  ncclWindow_vidmem* window = nullptr;
  // In the window: [kMostSumBlocks][kMostSumRanks] uint32, zero at first. Each rank writes into the
  // others' how often its block has come.
  size_t arrivals = 0;
  static constexpr size_t kArrivalBytes = kMostSumBlocks * kMostSumRanks * sizeof(uint32_t);
  uint32_t* turns = nullptr;       // [kMostSumBlocks] of this GPU, zero at first
  const uint32_t* stop = nullptr;  // of the host, seen by the GPU: not 0 ends all waits
  int rank = 0, ranks = 0;
};

// y = or y += the sum over the ranks of the [y.rows, y.cols] f32 at `offset` of the window. y:
// contiguous. Ranks wait for one another before they read, not after. Once *stop is not 0, y is
// anything.
void SumWindows(Stream& stream, const SumMeetings& meetings, size_t offset, ops::Epilogue epilogue,
                const MatrixView& y);

}  // namespace litecache::parallel
