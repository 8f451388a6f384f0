// Tiles of a prompt's queries and of KV rows (tiled_attention_cuda.cu): how they are copied,
// attended and stored.
#pragma once

#include "ops/attention/attention_arrays.cuh"
#include "ops/common/online_softmax.cuh"

namespace litecache::ops::cuda::tiled {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kKvRows = 64;  // in a tile
constexpr unsigned kAll = 0xffffffffu;
constexpr int kMostWords = 2048;  // of kept blocks' bits: 8 million tokens

// Which rows a token attends: all up to its own; of these the sink and a window; or kept blocks.
enum class Rows { kAll, kWindow, kKept };

template <int kHeadDim>
struct TiledShape {
  // 16-row products per warp: two share their loads of K and V; at head_dim 256 registers suffice
  // for only one.
  static constexpr int kProducts = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kWarpQueries = kProducts * 16;
  static constexpr int kQueries = kWarps * kWarpQueries;
  static constexpr int kParts = kHeadDim <= 256 ? 1 : 2;  // blocks that share a tile's values
  static constexpr int kValues = kHeadDim / kParts;
  static constexpr int kQueryBytes = kHeadDim * 2;
  static constexpr int kRowBytes = (kHeadDim + kValues) * 2;
  static constexpr int kStageBytes = kKvRows * kRowBytes;
  static constexpr int kStages = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kBytes = kQueries * kQueryBytes + kStages * kStageBytes;
};

struct TiledProblem {
  StepView step;
  TableAccess access;
  AttentionArrays arrays;
  int32_t window = 0;  // Rows::kWindow: tokens attend the sink and the last `window` ones
  // Rows::kKept: query heads are taken for groups of one.
  DeviceKeptBlocks kept;
  int32_t group = 0;  // the query heads of a KV head
};

// A warp's queries. Lane l holds rows l / 4 and l / 4 + 8 of each product.
template <int kHeadDim>
struct TiledState {
  static constexpr int kProducts = TiledShape<kHeadDim>::kProducts;
  float maximum[kProducts][2], sum[kProducts][2];
  float out[kProducts][TiledShape<kHeadDim>::kValues / 8][4];
};

// Which of a tile's rows each of the lane's query rows attends: those below `below`, and with a
// window only from `from` on or below `sink`.
template <bool kWindow>
struct TileLimits {
  int32_t below[2][2] = {};
  int32_t from[2][2] = {};
  int32_t sink = 0;

  __device__ __forceinline__ bool Shows(int m, int h, int32_t row) const {
    if (kWindow && row < from[m][h] && row >= sink) return false;
    return row < below[m][h];
  }
};

// kMasked: some queries do not attend all rows of the tile. kCapped: scores may have a cap; kernels
// without it do not have registers for the branch.
template <int kHeadDim, bool kMasked, bool kWindow, bool kCapped>
__device__ __forceinline__ void AttendTile(const AttentionArrays& a, uint32_t queries,
                                           uint32_t stage, const TileLimits<kWindow>& limits,
                                           TiledState<kHeadDim>* state) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kProducts = Shape::kProducts;
  const int lane = threadIdx.x % 32;
  float scores[kProducts][kKvRows / 8][4] = {};
  {
    const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int s = 0; s < kHeadDim / 16; ++s) {
      uint32_t q[kProducts][4];
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        LoadMatrices(q[m], queries + SwizzledOffset(m * 16 + lane % 16, 2 * s + lane / 16,
                                                    Shape::kQueryBytes));
      }
#pragma unroll
      for (int n = 0; n < kKvRows / 16; ++n) {
        uint32_t k[4];
        LoadMatrices(k,
                     stage + SwizzledOffset(n * 16 + row, 2 * s + lane / 8 % 2, Shape::kRowBytes));
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          MultiplyAdd(scores[m][2 * n], q[m], k[0], k[1]);
          MultiplyAdd(scores[m][2 * n + 1], q[m], k[2], k[3]);
        }
      }
    }
  }
  if constexpr (kCapped) a.cap.Apply(scores);
  const auto shown = [&](int m, int n, int i) {
    return limits.Shows(m, i / 2, n * 8 + lane % 4 * 2 + i % 2);
  };
  if (kMasked) {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
#pragma unroll
      for (int n = 0; n < kKvRows / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!shown(m, n, i)) scores[m][n][i] = -INFINITY;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kProducts; ++m) {
    bool huge = false;
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float highest = state->maximum[m][h];
#pragma unroll
      for (int n = 0; n < kKvRows / 8; ++n) {
        highest = fmaxf(highest, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      }
      highest = fminf(QuadMax(highest), kLargestScore);
      factor[h] = Exp2(state->maximum[m][h] - highest);
      state->maximum[m][h] = highest;
      huge |= fabsf(highest) > kHugeScore;
    }
    float sums[2] = {0, 0};
    if (huge) {
#pragma unroll
      for (int n = 0; n < kKvRows / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = CarefulExp2(scores[m][n][i] - state->maximum[m][i / 2]);
          scores[m][n][i] = !kMasked || shown(m, n, i) ? p : 0.0f;
          sums[i / 2] += scores[m][n][i];
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kKvRows / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[m][n][i] = Exp2(scores[m][n][i] - state->maximum[m][i / 2]);
          sums[i / 2] += scores[m][n][i];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) state->sum[m][h] = state->sum[m][h] * factor[h] + sums[h];
    // Maxima rarely rise after the first tiles.
    if (__any_sync(kAll, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < Shape::kValues / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state->out[m][n][i] *= factor[i / 2];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kKvRows / 16; ++r) {
    uint32_t p[kProducts][4];
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      const float* low = scores[m][2 * r];
      const float* high = scores[m][2 * r + 1];
      p[m][0] = PackBf16(low[0], low[1]);
      p[m][1] = PackBf16(low[2], low[3]);
      p[m][2] = PackBf16(high[0], high[1]);
      p[m][3] = PackBf16(high[2], high[3]);
    }
#pragma unroll
    for (int n = 0; n < Shape::kValues / 16; ++n) {
      uint32_t v[4];
      LoadTransposed(v, stage + SwizzledOffset(r * 16 + lane % 16, kHeadDim / 8 + 2 * n + lane / 16,
                                               Shape::kRowBytes));
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        MultiplyAdd(state->out[m][2 * n], p[m], v[0], v[1]);
        MultiplyAdd(state->out[m][2 * n + 1], p[m], v[2], v[3]);
      }
    }
  }
}

// Copies rows [begin, begin + kKvRows) into a stage, with zeros from `end` on. Called by the whole
// block. first: the first row if pages hold whole tiles, otherwise null. ring: of the slots, or
// null. first_value: of the block's part.
template <int kHeadDim>
__device__ void CopyTile(const RowList& list, const std::byte* first, const TableAccess* ring,
                         int32_t begin, int32_t end, int head_dim, int first_value,
                         uint32_t stage) {
  constexpr int kKeyChunks = kHeadDim / 8, kChunks = TiledShape<kHeadDim>::kRowBytes / 16;
  // Neighbouring threads copy a row, or a third of a wide one at a time.
  constexpr int kTogether = kThreads % kChunks == 0 ? kChunks : 32;
  constexpr int kStep = kThreads / kTogether, kTurns = kChunks / kTogether;
  const int own = static_cast<int>(threadIdx.x) % kTogether, chunks = head_dim / 8;
  int64_t offsets[kTurns];  // of the thread's chunks in a row; negative: it has no such
#pragma unroll
  for (int j = 0; j < kTurns; ++j) {
    const int c = own + j * kTogether;
    const int part = c / kKeyChunks, chunk = c % kKeyChunks + part * (first_value / 8);
    offsets[j] = chunk < chunks ? (part * chunks + chunk) * 16 : -1;
  }
  if (kTurns == 1 && offsets[0] < 0) return;
#pragma unroll
  for (int i = 0; i < kKvRows / kStep; ++i) {
    const int r = static_cast<int>(threadIdx.x) / kTogether + i * kStep;
    // Missing rows become zeros, since anything multiplied by zero must be a finite number.
    const int32_t token = begin + r < end ? begin + r : end - 1;
    const std::byte* row = first != nullptr  ? first + (token - begin) * list.row_bytes
                           : ring != nullptr ? list.Row(ring->RowOf(token))
                                             : list.Row(token);
#pragma unroll
    for (int j = 0; j < kTurns; ++j) {
      if (kTurns > 1 && offsets[j] < 0) continue;
      const int c = own + j * kTogether;
      CopyChunk(stage + SwizzledOffset(r, c, TiledShape<kHeadDim>::kRowBytes), row + offsets[j],
                begin + r < end);
    }
  }
}

// Loads the block's queries, scaled, from query `first` of the head's `queries` on; zeros behind
// the last.
template <int kHeadDim>
__device__ __forceinline__ void BringQueries(const AttentionArrays& a, int32_t first_row,
                                             int32_t head, int32_t first, int32_t queries,
                                             std::byte* tile) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kPairs = kHeadDim / 2;
  for (int i = threadIdx.x; i < Shape::kQueries * kPairs; i += kThreads) {
    const int r = i / kPairs, c = i % kPairs * 2;
    uint32_t value = 0;
    if (first + r < queries && c < a.head_dim) {
      const int32_t token = (first + r) / a.group;
      const int32_t column = (head * a.group + first + r - token * a.group) * a.head_dim + c;
      const auto pair =
          *reinterpret_cast<const float2*>(a.q + (first_row + token) * a.q_stride + column);
      value = PackBf16(pair.x * a.scale, pair.y * a.scale);
    }
    *reinterpret_cast<uint32_t*>(tile + SwizzledOffset(r, c / 8, Shape::kQueryBytes) + c % 8 * 2) =
        value;
  }
}

// The result of attending no rows.
template <int kHeadDim>
__device__ __forceinline__ void Clear(TiledState<kHeadDim>* state) {
#pragma unroll
  for (int m = 0; m < TiledShape<kHeadDim>::kProducts; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state->maximum[m][h] = -kLargestScore;
      state->sum[m][h] = 0;
    }
#pragma unroll
    for (int n = 0; n < TiledShape<kHeadDim>::kValues / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state->out[m][n][i] = 0;
    }
  }
}

// Writes the outputs of a warp's queries, from query `warp_first` of the head's `queries` and from
// value first_value on.
template <int kHeadDim>
__device__ __forceinline__ void StoreOutputs(const AttentionArrays& a, int32_t first_row,
                                             int32_t head, int32_t warp_first, int32_t queries,
                                             int first_value, const TiledState<kHeadDim>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < TiledShape<kHeadDim>::kProducts; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = QuadSum(state.sum[m][h]);
      const int32_t query = warp_first + m * 16 + h * 8 + lane / 4;
      if (query >= queries) continue;
      const int32_t token = query / a.group;
      const int32_t column = (head * a.group + query - token * a.group) * a.head_dim + lane % 4 * 2;
      const float inverse = 1.0f / a.WithSink(column, state.maximum[m][h], sum);
#pragma unroll
      for (int n = 0; n < TiledShape<kHeadDim>::kValues / 8; ++n) {
        const int value = first_value + n * 8;
        if (value >= a.head_dim) continue;
        a.Store(first_row + token, column + value, state.out[m][n][2 * h] * inverse,
                state.out[m][n][2 * h + 1] * inverse);
      }
    }
  }
}

}  // namespace litecache::ops::cuda::tiled
