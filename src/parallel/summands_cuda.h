// Sums of few rows over GPUs that can read each other's memory: one kernel, by NCCL's device API
// (NCCL 2.28 and later), without a copy between the ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/epilogue.h"

struct ncclDevComm;
struct ncclWindow_vidmem;

namespace litecache::parallel {

// Values of a block of the kernel, and the most blocks: one row of 4,096 values takes one, and the
// largest sum has 256 such rows.
inline constexpr int64_t kSumBlock = 4096, kMostSumBlocks = 256;

// y = or y += the sum over the ranks of the [y.rows, y.cols] f32 at `offset` of the window. y:
// contiguous. Ranks wait for one another before they read, not after.
void SumWindows(Stream& stream, const ncclDevComm& ranks, ncclWindow_vidmem* window, size_t offset,
                ops::Epilogue epilogue, const MatrixView& y);

}  // namespace litecache::parallel
