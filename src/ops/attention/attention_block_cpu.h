// Softmax attention of a block of queries of one KV head over tiles of rows at arbitrary addresses:
// shared by dense and row attention.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/attention/softmax.h"
#include "ops/common/avx512.h"
#include "ops/common/gemm_kernel_cpu.h"

namespace litecache::ops::cpu {

// KV rows in a tile of scores: its scores (64 queries * 64 rows * 4 bytes) and V rows fit in the L1
// and L2 cache.
inline constexpr int64_t kTileRows = 64;
static_assert(kTileRows == kDecodeTileRows);

// Addresses of a tile's rows [K | V].
using TileRows = std::array<const std::byte*, kTileRows>;

// The parameters of a call: shapes and the kernels for the active vector instructions.
struct AttentionShape {
  AttentionShape(DType dtype, int64_t head_dim, const Softmax& softmax);

  DType dtype;
  int64_t head_dim;
  float scale;  // for scores in units of log2 e: probabilities are powers of two
  float cap;    // of these scores; 0: none
  GemmKernel kernel;
  bool pairs;  // the kernel multiplies bf16 pairs directly from the rows; otherwise bf16 is widened

  int64_t row_bytes() const { return 2 * head_dim * static_cast<int64_t>(SizeOf(dtype)); }
  int64_t max_queries() const { return kernel.max_width(); }
  // Floats of the partial result of `queries` queries: maximum [queries], sum [queries], out
  // [queries][head_dim], out and sum relative to the maximum.
  int64_t PartialSize(int64_t queries) const { return (2 + head_dim) * queries; }
};

// The sinks of a block's queries, those of KV head `head` from the first-th on (attention.h numbers
// them: token by token, each with the query heads of its group).
class BlockSinks {
 public:
  BlockSinks(const Softmax& softmax, int64_t head, int64_t group, int64_t first)
      : sinks_(softmax.sinks == nullptr ? nullptr : softmax.sinks + head * group),
        group_(group),
        first_(first) {}

  // What query i's sums are multiplied with: 1 / (sum + 2^(sink - maximum)), where `sum` is that of
  // the rows' weights relative to their maximum. Always finite.
  float Inverse(int64_t i, float maximum, float sum) const;

 private:
  const float* sinks_;
  int64_t group_, first_;
};

// A running softmax. At most one per thread at a time: it uses the thread's scratch memory.
class AttentionBlock {
 public:
  // queries [count][head_dim] f32, contiguous, count <= shape.max_queries(); the block overwrites
  // them. one_token: no tile will have limits.
  AttentionBlock(const AttentionShape& shape, float* queries, int64_t count, bool one_token);

  // Adds a tile of 1 <= count <= kTileRows rows. limits [lanes of the queries, rounded up to a
  // vector] (null: no mask): query i attends only the tile's rows below limits[i]. Prefetches the
  // rows of the next tile.
  void Add(const TileRows& rows, int64_t count, const int32_t* limits, const TileRows& next,
           int64_t next_count);

  // Writes the result of query i, [head_dim].
  void Write(int64_t i, const BlockSinks& sinks, float* out) const;
  void WritePartial(float* partial) const;

 private:
  void AddToPanel(const TileRows& rows, int64_t count, const int32_t* limits);

  const AttentionShape& shape_;
  int64_t count_;
  bool decode_;    // use Avx512DecodeTile
  int64_t width_;  // lanes: count_ rounded up to vectors
  void* queries_;  // a panel, or bf16 rows if decode_
  float* maximum_;
  float* sum_;
  float* out_;  // [head_dim][width_], or [count_][head_dim] if decode_
  float* scores_ = nullptr;
  float* factor_ = nullptr;
};

// Attends all tiles of `cursor`. cursor.Next(rows) writes the addresses of up to kTileRows rows and
// returns their number, 0 at the end; limits(first, count) returns the limits for `count` rows,
// starting at the cursor's row `first`.
template <class Cursor, class Limits>
void AddAll(AttentionBlock& block, Cursor cursor, const Limits& limits) {
  TileRows tiles[2];
  int64_t count = cursor.Next(tiles[0]);
  int current = 0;
  for (int64_t first = 0; count > 0; current ^= 1) {
    const int64_t next = cursor.Next(tiles[current ^ 1]);
    block.Add(tiles[current], count, limits(first, count), tiles[current ^ 1], next);
    first += count;
    count = next;
  }
}

// Computes out [queries][head_dim] from `count` partial results of the same queries, `stride`
// floats apart.
void MergePartials(const AttentionShape& shape, const float* partials, int64_t count,
                   int64_t queries, int64_t stride, const BlockSinks& sinks, float* out);

}  // namespace litecache::ops::cpu
