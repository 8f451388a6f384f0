// How quantized weights lie in a GPU's memory: the blocks of a GGUF file in another order, in which
// the threads of a product read whole words. Written on the host when weights are uploaded, read by
// the kernels of gemv_cuda.h and unpack_blocks_cuda.h. Their values are the format's, bit
// for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix_view.h"

namespace litecache::ops {

// Rows that are packed together: a matrix may be packed in pieces of a multiple of these rows, one
// after the other, with the same result.
inline constexpr int64_t kPackedRows = 16;

// Bytes of a packed matrix of `rows` rows and `cols` columns.
uint64_t PackedBytes(const BlockFormat& format, int64_t rows, int64_t cols);

// Packs a matrix of dtype kBlocks in host memory, any number of rows, into PackedBytes() bytes.
void PackBlocks(const MatrixView& blocks, std::byte* out);

}  // namespace litecache::ops
