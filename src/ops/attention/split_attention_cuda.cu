// Decode attention, and that of short chunks, over bf16 rows.
#include <algorithm>

#include "ops/attention/row_tiles.cuh"
#include "ops/attention/split_kernel.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr auto kQueries = static_cast<int32_t>(kSplitQueries);

template <bool kChunk>
void Launch(CudaStream& stream, const split::SplitProblem& problem) {
  if (problem.arrays.head_dim <= 64) {
    split::Launch<split::RowTiles<64, kChunk>>(stream, problem);
  } else if (problem.arrays.head_dim <= 128) {
    split::Launch<split::RowTiles<128, kChunk>>(stream, problem);
  } else {
    split::Launch<split::RowTiles<256, kChunk>>(stream, problem);
  }
}

// A pair's tokens in a chunk of `rows` tokens.
int32_t TokensOfPair(int32_t rows, int32_t group) { return std::min(rows, kQueries / group); }

}  // namespace

bool SplitServesChunk(const StepView& step, int64_t kv_heads, int64_t q_heads) {
  const auto group = static_cast<int32_t>(q_heads / kv_heads);
  if (step.max_rows > kMostShortChunk || group > kQueries) return false;
  const int32_t tokens = TokensOfPair(step.max_rows, group);
  const int32_t reads = (step.max_rows + tokens - 1) / tokens;
  // The latter as AttentionScratchBytes() counts.
  return reads <= kMostShortChunkReads &&
         int64_t{step.capacity} * reads * tokens <= 2 * kMostShortChunk;
}

void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch) {
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  CudaStream& cuda = AsCuda(stream);
  split::SplitProblem p;
  p.tables = tables;
  p.arrays = AttentionArrays(operands, tables.kv_heads, table.format.head_dim);
  p.arrivals = cuda.arrivals();
  p.partials = static_cast<float*>(scratch);
  const int32_t rows = tables.step.max_rows;
  if (rows > 1) {
    p.tokens = TokensOfPair(rows, p.arrays.group);
    p.query_blocks = (rows + p.tokens - 1) / p.tokens;
    p.queries = p.tokens * p.arrays.group;
    Launch<true>(cuda, p);
    return;
  }
  p.query_blocks = (p.arrays.group + kQueries - 1) / kQueries;
  p.queries = std::min(p.arrays.group, kQueries);
  Launch<false>(cuda, p);
}

}  // namespace litecache::ops::cuda
