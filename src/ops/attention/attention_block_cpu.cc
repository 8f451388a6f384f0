#include "ops/attention/attention_block_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/attention_tile_cpu.h"
#include "ops/common/row_address.h"
#include "ops/common/scratch.h"
#include "ops/common/widen.h"
#include "ops/dense/soft_cap_cpu.h"

namespace litecache::ops::cpu {
namespace {

// Adjacent rows are multiplied together, 12 of them in registers. A tile with more runs of adjacent
// rows than this is first copied into one.
constexpr int64_t kMaxRuns = 8;

constexpr float kLog2E = 1.44269504f;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Calls body(address, first, count) for the runs of rows that are adjacent in memory.
template <class Body>
void ForEachTileRun(const TileRows& rows, int64_t count, int64_t row_bytes, const Body& body) {
  for (int64_t first = 0; first < count;) {
    int64_t end = first + 1;
    while (end < count && rows[Size(end)] == rows[Size(end - 1)] + row_bytes) ++end;
    body(rows[Size(first)], first, end - first);
    first = end;
  }
}

// A tile's rows in the form that the kernel multiplies: `stride` bytes apart within a run.
struct Tile {
  TileRows rows;            // their addresses
  const float* widened;     // [count][K | V], or null
  const uint32_t* v_pairs;  // [count / 2][head_dim] interleaved V rows, or null
};

Tile PrepareTile(const AttentionShape& shape, const TileRows& rows, int64_t count) {
  static thread_local Scratch copy_scratch, scratch;
  const int64_t d = shape.head_dim, row_bytes = shape.row_bytes();
  Tile tile{.rows = rows, .widened = nullptr, .v_pairs = nullptr};
  if (shape.dtype == DType::kBF16 && !shape.pairs) {
    auto* data = scratch.Reserve<float>(Size(kTileRows * 2 * d));
    ForEachTileRun(rows, count, row_bytes, [&](const std::byte* run, int64_t first, int64_t n) {
      Widen(shape.dtype, run, n * 2 * d, data + first * 2 * d);
    });
    tile.widened = data;
    return tile;
  }
  int64_t runs = 0;
  ForEachTileRun(rows, count, row_bytes, [&](const std::byte*, int64_t, int64_t) { ++runs; });
  if (runs > kMaxRuns) {
    auto* copy = copy_scratch.Reserve<std::byte>(Size(kTileRows * row_bytes));
    for (int64_t i = 0; i < count; ++i) {
      std::byte* row = copy + i * row_bytes;
      std::memcpy(row, rows[Size(i)], Size(row_bytes));
      tile.rows[Size(i)] = row;
    }
  }
  if (!shape.pairs) return tile;
  TileRows v_rows;
  for (int64_t i = 0; i < count; ++i) v_rows[Size(i)] = tile.rows[Size(i)] + row_bytes / 2;
  auto* pairs = scratch.Reserve<uint32_t>(Size(kTileRows / 2 * d));
  Avx512InterleaveRows(v_rows.data(), count, d, pairs);
  tile.v_pairs = pairs;
  return tile;
}

// scores [count][width] = K of the tile times the queries.
void Score(const AttentionShape& shape, const void* panel, int64_t vectors, const Tile& tile,
           int64_t count, float* scores) {
  const int64_t d = shape.head_dim;
  const int64_t width = vectors * shape.kernel.lanes;
  if (tile.widened != nullptr) {
    shape.kernel.multiply(panel, vectors, d, tile.widened, 2 * d * 4, 4, count, false, scores);
    return;
  }
  ForEachTileRun(tile.rows, count, shape.row_bytes(),
                 [&](const std::byte* run, int64_t first, int64_t n) {
                   shape.kernel.multiply(panel, vectors, d, run, shape.row_bytes(), 4, n, false,
                                         scores + first * width);
                 });
}

// out [head_dim][width] += V of the tile times the probabilities.
void Accumulate(const AttentionShape& shape, const float* probabilities, int64_t vectors,
                const Tile& tile, int64_t count, float* out) {
  static thread_local Scratch scratch;
  const int64_t d = shape.head_dim;
  const int64_t width = vectors * shape.kernel.lanes;
  if (tile.v_pairs != nullptr) {
    auto* panel = scratch.Reserve<uint32_t>(Size(kTileRows / 2 * width));
    Avx512PackPairs(probabilities, count, width, panel);
    // With an odd number of rows, the last one is paired with zeros in both operands.
    shape.kernel.multiply(panel, vectors, (count + 1) / 2 * 2, tile.v_pairs, 4, d * 4, d, true,
                          out);
    return;
  }
  if (tile.widened != nullptr) {
    shape.kernel.multiply(probabilities, vectors, count, tile.widened + d, 4, 2 * d * 4, d, true,
                          out);
    return;
  }
  ForEachTileRun(tile.rows, count, shape.row_bytes(),
                 [&](const std::byte* run, int64_t first, int64_t n) {
                   shape.kernel.multiply(probabilities + first * width, vectors, n, run + d * 4, 4,
                                         shape.row_bytes(), d, true, out);
                 });
}

}  // namespace

AttentionShape::AttentionShape(DType dtype, int64_t head_dim, const Softmax& softmax)
    : dtype(dtype), head_dim(head_dim), scale(softmax.scale * kLog2E), cap(softmax.cap * kLog2E) {
  std::optional<GemmKernel> bf16_kernel;
  if (dtype == DType::kBF16) bf16_kernel = Bf16GemmKernel();
  pairs = bf16_kernel.has_value();
  kernel = pairs ? *bf16_kernel : F32GemmKernel();
}

AttentionBlock::AttentionBlock(const AttentionShape& shape, float* queries, int64_t count,
                               bool one_token)
    : shape_(shape),
      count_(count),
      decode_(shape.pairs && one_token && count <= kMaxDecodeHeads && shape.head_dim % 32 == 0),
      width_((count + shape.kernel.lanes - 1) / shape.kernel.lanes * shape.kernel.lanes) {
  static thread_local Scratch query_scratch, out_scratch, lane_scratch, score_scratch;
  const int64_t d = shape.head_dim;
  for (int64_t i = 0; i < count * d; ++i) queries[i] *= shape.scale;
  const int64_t lanes = decode_ ? kMaxDecodeHeads : width_;
  queries_ = query_scratch.Reserve<float>(Size(lanes * d));
  if (decode_) {
    NarrowToBf16(queries, count * d, static_cast<bf16*>(queries_));
  } else {
    shape.kernel.pack(queries, d, count, d, width_ / shape.kernel.lanes,
                      shape.dtype == DType::kBF16, queries_);
    scores_ = score_scratch.Reserve<float>(Size(kTileRows * width_));
  }
  maximum_ = lane_scratch.Reserve<float>(Size(3 * lanes));
  sum_ = maximum_ + lanes;
  factor_ = sum_ + lanes;
  out_ = out_scratch.Reserve<float>(Size(lanes * d));
  std::fill(maximum_, maximum_ + lanes, -std::numeric_limits<float>::max());
  std::fill(sum_, sum_ + lanes, 0.0f);
  std::fill(out_, out_ + (decode_ ? count : width_) * d, 0.0f);
}

void AttentionBlock::Add(const TileRows& rows, int64_t count, const int32_t* limits,
                         const TileRows& next, int64_t next_count) {
  if (decode_) {
    Avx512DecodeTile(rows.data(), count, next.data(), next_count, shape_.head_dim, queries_, count_,
                     shape_.cap, maximum_, sum_, out_);
    return;
  }
  // Rows may be anywhere, and hardware prefetchers stop at page boundaries.
  for (int64_t i = 0; i < next_count; ++i) {
    PrefetchRow(next[Size(i)], Size(shape_.row_bytes()));
  }
  AddToPanel(rows, count, limits);
}

void AttentionBlock::AddToPanel(const TileRows& rows, int64_t count, const int32_t* limits) {
  const int64_t vectors = width_ / shape_.kernel.lanes;
  const Tile tile = PrepareTile(shape_, rows, count);
  Score(shape_, queries_, vectors, tile, count, scores_);
  if (shape_.cap != 0) SoftCap(scores_, count * width_, shape_.cap);
  if (SoftmaxTile(scores_, count, width_, limits, maximum_, sum_, factor_)) {
    ScaleRows(out_, shape_.head_dim, width_, factor_);
  }
  Accumulate(shape_, scores_, vectors, tile, count, out_);
}

float BlockSinks::Inverse(int64_t i, float maximum, float sum) const {
  if (sinks_ == nullptr) return 1.0f / sum;
  // Where the sink is far above all scores, the sums are as good as nothing beside it.
  const float above = sinks_[(first_ + i) % group_] * kLog2E - maximum;
  return 1.0f / (sum + std::exp2(std::min(above, 126.0f)));
}

void AttentionBlock::Write(int64_t i, const BlockSinks& sinks, float* out) const {
  const int64_t d = shape_.head_dim;
  const float inverse = sinks.Inverse(i, maximum_[i], sum_[i]);
  if (decode_) {
    for (int64_t c = 0; c < d; ++c) out[c] = out_[i * d + c] * inverse;
  } else {
    for (int64_t c = 0; c < d; ++c) out[c] = out_[c * width_ + i] * inverse;
  }
}

void AttentionBlock::WritePartial(float* partial) const {
  const int64_t d = shape_.head_dim;
  std::copy_n(maximum_, count_, partial);
  std::copy_n(sum_, count_, partial + count_);
  float* out = partial + 2 * count_;
  if (decode_) {
    std::copy_n(out_, count_ * d, out);
    return;
  }
  for (int64_t i = 0; i < count_; ++i) {
    for (int64_t c = 0; c < d; ++c) out[i * d + c] = out_[c * width_ + i];
  }
}

void MergePartials(const AttentionShape& shape, const float* partials, int64_t count,
                   int64_t queries, int64_t stride, const BlockSinks& sinks, float* out) {
  const int64_t d = shape.head_dim;
  for (int64_t i = 0; i < queries; ++i, out += d) {
    float maximum = partials[i];
    for (int64_t p = 1; p < count; ++p) maximum = std::max(maximum, partials[p * stride + i]);
    float sum = 0;
    std::fill(out, out + d, 0.0f);
    for (int64_t p = 0; p < count; ++p) {
      const float* partial = partials + p * stride;
      const float factor = std::exp2(partial[i] - maximum);
      sum += partial[queries + i] * factor;
      const float* values = partial + 2 * queries + i * d;
      for (int64_t c = 0; c < d; ++c) out[c] += values[c] * factor;
    }
    const float inverse = sinks.Inverse(i, maximum, sum);
    for (int64_t c = 0; c < d; ++c) out[c] *= inverse;
  }
}

}  // namespace litecache::ops::cpu
