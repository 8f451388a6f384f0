// Attention over paged KV rows: append and causal attend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/attention/softmax.h"

namespace litecache::ops {

struct KeptBlocks;

// The memory layout of KV rows. A page holds page_tokens rows of one (sequence, layer, KV head);
// row t is [K (head_dim) | V (head_dim)] in dtype (bf16 or f32), contiguous: storing a token's K
// and V side by side halves the number of rows that a transfer moves
// (docs/internals/architecture.md).
struct KvGeometry {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBF16;
  int64_t page_tokens = 0;

  size_t row_bytes() const { return static_cast<size_t>(2 * head_dim) * SizeOf(dtype); }
  size_t page_bytes() const { return row_bytes() * static_cast<size_t>(page_tokens); }
};

// One sequence's part of a step, for one layer.
struct KvSequence {
  int64_t first_row = 0;  // row of its first new token in q, k, v, out
  int64_t rows = 0;       // new tokens in this step, >= 1
  int64_t past = 0;       // tokens that are in the pages already
  // Page i of KV head h is pages[h][i]; token t is in page t / page_tokens. Each head has its own
  // list of pages, because heads of one layer may be in different memories.
  std::byte* const* const* pages = nullptr;
  int64_t pages_per_head = 0;
};

// Writes the new tokens' K and V rows into the pages, converting to the geometry's dtype. k, v [T,
// kv_heads * head_dim] f32 (k after RoPE).
void AppendKv(Stream& stream, const KvGeometry& geometry, std::span<const KvSequence> sequences,
              const MatrixView& k, const MatrixView& v);

// Causal attention by online softmax (memory does not grow with the context): row i of a sequence
// attends its tokens [0, past + i]. q, out [T, q_heads * head_dim] f32, q_heads a multiple of
// kv_heads (GQA: query head j reads KV head j / (q_heads / kv_heads)). bf16 rows: q and
// probabilities are rounded to bf16 if a matrix unit multiplies them; sums are f32. A sequence's
// results depend neither on the number of threads nor on the other sequences. Scores of any size,
// including infinite ones, give finite results. kept (null: all rows): the blocks of rows that the
// queries of a single sequence attend; if it keeps all, the results have the same bits.
void Attention(Stream& stream, const KvGeometry& geometry, std::span<const KvSequence> sequences,
               const MatrixView& q, int64_t q_heads, const Softmax& softmax, const MatrixView& out,
               const KeptBlocks* kept = nullptr);

// Bytes that partial results of `sequences` decode sequences and a prompt chunk take on the CPU, in
// Attention() or RowAttention() (row_attention.h), which split contexts into pieces.
uint64_t AttentionScratchBytes(int64_t kv_heads, int64_t group, int64_t head_dim,
                               int64_t sequences);

}  // namespace litecache::ops
