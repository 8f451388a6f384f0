// ops/dense/embedding.h on a GPU; all pointers are device memory.
#pragma once

#include <cstdint>
#include <limits>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "ops/common/epilogue.h"

namespace litecache::ops::cuda {

// y [T, hidden] f32 = rows `ids` (device, [T]) of table (bf16, f32 or packed blocks, whose values
// are the format's bit for bit); kAdd adds. An id outside of a whole table gives NaN, since the
// device cannot report an error.
void Embedding(Stream& stream, const MatrixView& table, const int32_t* ids, const MatrixView& y,
               Epilogue epilogue, int64_t first = -1);

// For kernels: the first row of a table, and the values of ids that are not in it.
inline int32_t FirstRow(int64_t first) { return first < 0 ? 0 : static_cast<int32_t>(first); }
inline float OfUnknown(int64_t first) {
  return first < 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
}

// The same for a table of packed blocks, whose order in memory belongs to matrix products
// (ops/linear/quantized/unpack_blocks_cuda.cu).
void GatherBlocks(CudaStream& stream, const MatrixView& table, const int32_t* ids,
                  const MatrixView& y, Epilogue epilogue, int64_t first);

}  // namespace litecache::ops::cuda
