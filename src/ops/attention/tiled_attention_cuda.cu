// Attention of a prompt chunk: FlashAttention-2 on mma.sync over paged rows.
//
// The query heads of a group are rows of one tile (row i of a sequence's KV head is token i /
// group, head i % group), so that a tile of KV rows is read once for the group and the causal edge
// of a tile is as narrow as possible. Tiles of the last tokens, which attend the most rows, go
// first. With a window, rows are in a ring of slots, and tiles of rows that no query attends are
// skipped. Where heads keep different blocks of rows, a tile has the queries of one head: those of
// four heads that each keep a tenth would attend a third of the blocks. Beyond a head_dim of 256
// registers suffice for half of the values: two blocks attend the same rows, each for its half.
#include "ops/attention/tiled_kernel.cuh"

namespace litecache::ops::cuda {
namespace {

void Attend(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
            tiled::Rows rows, int32_t window, const AttentionOperands& operands) {
  const bool capped = operands.cap != 0 || table.format.head_dim > 256;
  (capped ? tiled::Attend<true> : tiled::Attend<false>)(stream, step, kv_heads, table, rows, window,
                                                        operands);
}

}  // namespace

void TiledAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const AttentionOperands& operands) {
  const bool kept = operands.kept.bits != nullptr;
  Attend(stream, step, kv_heads, table, kept ? tiled::Rows::kKept : tiled::Rows::kAll, 0, operands);
}

void TiledWindowAttention(Stream& stream, const StepView& step, int64_t kv_heads,
                          const RowTable& table, int32_t window,
                          const AttentionOperands& operands) {
  Attend(stream, step, kv_heads, table, tiled::Rows::kWindow, window, operands);
}

}  // namespace litecache::ops::cuda
