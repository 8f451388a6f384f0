// Decode attention over bf16 rows.
#include <algorithm>

#include "ops/attention/row_tiles.cuh"
#include "ops/attention/split_kernel.cuh"

namespace litecache::ops::cuda {

void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch) {
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  CudaStream& cuda = AsCuda(stream);
  split::SplitProblem p;
  p.tables = tables;
  p.arrays = AttentionArrays(operands, tables.kv_heads, table.format.head_dim);
  constexpr auto kQueries = static_cast<int32_t>(kSplitQueries);
  p.query_blocks = (p.arrays.group + kQueries - 1) / kQueries;
  p.queries = std::min(p.arrays.group, kQueries);
  p.arrivals = cuda.arrivals();
  p.partials = static_cast<float*>(scratch);
  if (p.arrays.head_dim <= 64) {
    split::Launch<split::RowTiles<64>>(cuda, p);
  } else if (p.arrays.head_dim <= 128) {
    split::Launch<split::RowTiles<128>>(cuda, p);
  } else {
    split::Launch<split::RowTiles<256>>(cuda, p);
  }
}

}  // namespace litecache::ops::cuda
