// Decode attention over cached slots of 8-bit codes, and over rows of wide heads.
#include <algorithm>

#include "ops/attention/code_tiles.cuh"
#include "ops/attention/split_kernel.cuh"
#include "ops/common/thread_block_clusters_cuda.h"
#include "ops/slots/code_slots.h"

namespace litecache::ops::cuda {
namespace {

// More warps rather than more stages: converting codes keeps a warp busy, and 12 warps leave enough
// registers for it; 8 warps with 6 stages take 1.2 times as long (lab/notes/gpu/kernels.md).
template <RowEncoding kEncoding>
void LaunchOf(CudaStream& stream, const split::SplitProblem& p) {
  using split::CodeTiles, split::Launch;
  // Whether a tile is one run of bytes that the GPU can copy as such.
  const bool runs =
      WholeCodeTiles(p.arrays.head_dim, p.tables.tables.codes.page_slots) && UseClusters();
  if (p.arrays.head_dim <= 64) {
    runs ? Launch<CodeTiles<64, kEncoding, 12, 6, true>>(stream, p)
         : Launch<CodeTiles<64, kEncoding, 12, 6, false>>(stream, p);
  } else if (p.arrays.head_dim <= 128) {
    runs ? Launch<CodeTiles<128, kEncoding, 12, 4, true>>(stream, p)
         : Launch<CodeTiles<128, kEncoding, 12, 4, false>>(stream, p);
  } else if (p.arrays.head_dim <= 256) {
    Launch<CodeTiles<256, kEncoding, 8, 3, false>>(stream, p);
  } else {
    Launch<CodeTiles<512, kEncoding, 4, 3, false>>(stream, p);
  }
}

}  // namespace

void SplitCodesAttention(Stream& stream, const AttendedTables& tables,
                         const AttentionOperands& operands, void* scratch) {
  constexpr int kQueries = 8;  // CodeTiles::kQueries
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  CudaStream& cuda = AsCuda(stream);
  split::SplitProblem p;
  p.tables = tables;
  p.arrays = AttentionArrays(operands, tables.kv_heads, table.format.head_dim);
  p.query_blocks = (p.arrays.group + kQueries - 1) / kQueries;
  p.queries = std::min(p.arrays.group, kQueries);
  p.arrivals = cuda.arrivals();
  p.partials = static_cast<float*>(scratch);
  if (tables.tables.codes.encoding == RowEncoding::kFp8) {
    LaunchOf<RowEncoding::kFp8>(cuda, p);
  } else {
    LaunchOf<RowEncoding::kInt8>(cuda, p);
  }
}

}  // namespace litecache::ops::cuda
