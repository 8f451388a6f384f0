#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "device/cpu/cpu_device.h"
#include "ops/attention/kv_rows_cpu.h"
#include "ops/common/scratch.h"
#include "ops/dense/soft_cap_cpu.h"
#include "ops/linear/linear_cpu.h"
#include "ops/sparse_prefill/sparse_prefill.h"

namespace litecache::ops {
namespace {

constexpr int64_t kQueryRows = 128;
constexpr int64_t kStride = kSparseStride;
// Squares of rows that are gathered at a time: a few MB, which bounds the scratch and stays in the
// cache until they are multiplied.
constexpr int64_t kSliceSquares = 1024;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A chunk's squares and blocks, and the elements of a KV head's arrays.
struct Sizes {
  Sizes(const KvGeometry& geometry, int64_t q_heads, int64_t rows, int64_t context)
      : group(q_heads / geometry.kv_heads),
        depth(kStride * geometry.head_dim),
        query_squares(CeilDiv(rows, kStride)),
        key_squares(CeilDiv(context, kStride)),
        slice(std::min(key_squares, kSliceSquares)),
        query_blocks(CeilDiv(rows, kQueryRows)),
        blocks(CeilDiv(context, KeptBlocks::kRows)) {}

  int64_t group, depth, query_squares, key_squares, slice, query_blocks, blocks;

  size_t keys() const { return static_cast<size_t>(slice * depth); }
  size_t queries() const { return static_cast<size_t>(group * query_squares * depth); }
  size_t scores() const { return static_cast<size_t>(group * query_squares * key_squares); }
  size_t shares() const { return static_cast<size_t>(group * query_blocks * blocks); }
};

struct Chunk {
  const KvGeometry& geometry;
  const KvSequence& sequence;
  MatrixView q;
  Softmax softmax;
  double mass;
  bool whole_end;
  Sizes sizes;

  int64_t context() const { return sequence.past + sequence.rows; }
};

// A square of queries as one row [16 head_dim], the last query first: row s of a square of keys
// meets query 15 - s. Queries beyond the chunk are zero.
void GatherQueries(const Chunk& c, int64_t q_head, int64_t square, float* out) {
  const int64_t d = c.geometry.head_dim;
  for (int64_t s = 0; s < kStride; ++s, out += d) {
    const int64_t token = (square + 1) * kStride - 1 - s;
    if (token < c.sequence.rows) {
      std::copy_n(c.q.Row<float>(c.sequence.first_row + token) + q_head * d, d, out);
    } else {
      std::fill_n(out, d, 0.0f);
    }
  }
}

// The keys of a square of rows as one row [16 head_dim], zero beyond the context.
void GatherKeys(const Chunk& c, int64_t head, int64_t square, std::byte* out) {
  const size_t key_bytes = c.geometry.row_bytes() / 2;
  for (int64_t s = 0; s < kStride; ++s, out += key_bytes) {
    const int64_t row = square * kStride + s;
    if (row < c.context()) {
      std::memcpy(out, cpu::KvRowAddress(c.geometry, c.sequence, head, row), key_bytes);
    } else {
      std::memset(out, 0, key_bytes);
    }
  }
}

// Adds the softmax over the squares of rows that a square of queries sees to the shares of their
// blocks. scores: the square's sums of products, overwritten.
void AddShares(const Chunk& c, int64_t square, float* scores, float* shares) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const int64_t queries = std::min(kStride, c.sequence.rows - square * kStride);
  const int64_t last = c.sequence.past + square * kStride + queries - 1;
  int64_t seen = last / kStride + 1;
  // Fewer queries and rows at the end make fewer pairs, and possibly none.
  const int64_t rows = std::min(kStride, c.context() - (seen - 1) * kStride);
  const int64_t pairs = queries + rows - kStride;
  if (pairs > 0) {
    scores[seen - 1] *= static_cast<float>(queries) / static_cast<float>(pairs);
  } else {
    --seen;
  }
  for (int64_t i = 0; i < seen; ++i) {
    // Finite, and no NaN: infinities must not meet in a difference.
    const float mean = scores[i] * c.softmax.scale / static_cast<float>(queries);
    scores[i] = std::max(-kLargest, std::min(mean, kLargest));
  }
  if (c.softmax.cap != 0) cpu::SoftCap(scores, seen, c.softmax.cap);
  float highest = -kLargest;
  for (int64_t i = 0; i < seen; ++i) highest = std::max(highest, scores[i]);
  double total = 0;
  for (int64_t i = 0; i < seen; ++i) {
    scores[i] = std::exp(scores[i] - highest);
    total += scores[i];
  }
  for (int64_t i = 0; i < seen; ++i) {
    shares[i * kStride / KeptBlocks::kRows] += static_cast<float>(scores[i] / total);
  }
}

// Sets the bits of the blocks that a block of queries keeps. shares [blocks], order [blocks]:
// scratch.
void KeepBlocks(const Chunk& c, int64_t query_block, const float* shares, int32_t* order,
                uint32_t* bits) {
  const int64_t first = query_block * kQueryRows;
  const int64_t end = std::min(first + kQueryRows, c.sequence.rows);
  const int64_t own = (c.sequence.past + first) / KeptBlocks::kRows;
  const int64_t seen = (c.sequence.past + end - 1) / KeptBlocks::kRows + 1;
  const bool all = c.mass >= 1 || (c.whole_end && end == c.sequence.rows);
  double kept = 0;
  const auto keep = [&](int64_t block) {
    bits[block / 32] |= 1u << block % 32;
    kept += shares[block];
  };
  keep(0);
  for (int64_t block = all ? 1 : std::max<int64_t>(own, 1); block < seen; ++block) keep(block);
  if (all) return;
  int32_t* order_end = order + std::max<int64_t>(own - 1, 0);
  std::iota(order, order_end, 1);
  std::sort(order, order_end, [&](int32_t a, int32_t b) {
    return shares[a] > shares[b] || (shares[a] == shares[b] && a < b);
  });
  for (; order != order_end && kept < c.mass; ++order) keep(*order);
}

// The shares of one block of queries of one head, and the blocks it keeps.
void ChooseFor(const Chunk& c, int64_t query_block, float* scores, float* shares, int32_t* order,
               uint32_t* bits) {
  constexpr int64_t kSquares = kQueryRows / kStride;
  const int64_t begin = query_block * kSquares;
  const int64_t end = std::min(begin + kSquares, c.sizes.query_squares);
  std::fill_n(shares, c.sizes.blocks, 0.0f);
  for (int64_t square = begin; square < end; ++square) {
    AddShares(c, square, scores + square * c.sizes.key_squares, shares);
  }
  for (int64_t b = 0; b < c.sizes.blocks; ++b) shares[b] /= static_cast<float>(end - begin);
  KeepBlocks(c, query_block, shares, order, bits);
}

// scores [group * query_squares][key_squares] of a KV head.
void Score(ThreadPool& pool, const Chunk& c, int64_t head, float* scores) {
  static thread_local cpu::Scratch query_scratch, key_scratch;
  const Sizes& n = c.sizes;
  auto* queries = query_scratch.Reserve<float>(n.queries());
  auto* keys = key_scratch.Reserve<std::byte>(n.keys() * SizeOf(c.geometry.dtype));
  const int64_t key_bytes = n.depth * static_cast<int64_t>(SizeOf(c.geometry.dtype));
  const int64_t rows = n.group * n.query_squares;
  pool.ParallelFor(rows, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      GatherQueries(c, head * n.group + i / n.query_squares, i % n.query_squares,
                    queries + i * n.depth);
    }
  });
  for (int64_t first = 0; first < n.key_squares; first += n.slice) {
    const int64_t count = std::min(n.slice, n.key_squares - first);
    pool.ParallelFor(count, 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) GatherKeys(c, head, first + i, keys + i * key_bytes);
    });
    // Not through ops::Linear, which would count the time as that of the model's products.
    const LinearPart part{
        .weight = MatrixView::Of(keys, c.geometry.dtype, count, n.depth),
        .y = {scores + first, DType::kF32, rows, count, n.key_squares},
    };
    cpu::Linear(pool, MatrixView::Of(queries, rows, n.depth), {&part, 1}, Epilogue::kStore);
  }
}

}  // namespace

void ChooseBlocks(Stream& stream, const KvGeometry& geometry, const KvSequence& sequence,
                  const MatrixView& q, int64_t q_heads, const Softmax& softmax, double mass,
                  bool whole_end, ChosenBlocks* out) {
  static thread_local cpu::Scratch score_scratch, share_scratch, order_scratch;
  const int64_t context = sequence.past + sequence.rows;
  LC_CHECK(q_heads >= 1 && q_heads % geometry.kv_heads == 0 && q.dtype == DType::kF32 &&
           q.cols == q_heads * geometry.head_dim);
  LC_CHECK(sequence.rows >= 1 && sequence.past >= 0 && sequence.first_row >= 0 &&
           sequence.first_row + sequence.rows <= q.rows);
  LC_CHECK(context <= sequence.pages_per_head * geometry.page_tokens);
  LC_CHECK(mass > 0 && mass <= 1, "mass {}", mass);
  const Chunk c{.geometry = geometry,
                .sequence = sequence,
                .q = q,
                .softmax = softmax,
                .mass = mass,
                .whole_end = whole_end,
                .sizes = Sizes(geometry, q_heads, sequence.rows, context)};
  const Sizes& n = c.sizes;
  KeptBlocks& kept = out->kept;
  kept = {.query_rows = kQueryRows,
          .query_blocks = static_cast<int32_t>(n.query_blocks),
          .words = static_cast<int32_t>(CeilDiv(n.blocks, 32))};
  out->bits.assign(static_cast<size_t>(q_heads * n.query_blocks * kept.words), 0);
  kept.bits = out->bits.data();
  auto* scores = score_scratch.Reserve<float>(n.scores());
  auto* shares = share_scratch.Reserve<float>(n.shares());
  auto* order = order_scratch.Reserve<int32_t>(n.shares());
  ThreadPool& pool = AsCpu(stream).pool();
  for (int64_t head = 0; head < geometry.kv_heads; ++head) {
    Score(pool, c, head, scores);
    uint32_t* bits = out->bits.data() + head * n.group * n.query_blocks * kept.words;
    pool.ParallelFor(n.group * n.query_blocks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t in_group = i / n.query_blocks;
        ChooseFor(c, i % n.query_blocks, scores + in_group * n.query_squares * n.key_squares,
                  shares + i * n.blocks, order + i * n.blocks, bits + i * kept.words);
      }
    });
  }
}

uint64_t SparsePrefillScratchBytes(const KvGeometry& geometry, int64_t q_heads, int64_t rows,
                                   int64_t context) {
  const Sizes n(geometry, q_heads, rows, context);
  return n.keys() * SizeOf(geometry.dtype) + n.queries() * sizeof(float) +
         n.scores() * sizeof(float) + n.shares() * (sizeof(float) + sizeof(int32_t)) +
         LinearScratchBytes(n.group * n.query_squares, n.depth, 1);
}

}  // namespace litecache::ops
