// The tiles of a decode attention over bf16 rows: 16 rows for up to 16 queries, copied and attended
// by a warp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attention_arrays.cuh"
#include "ops/attention/split_merge.cuh"
#include "ops/attention/split_problem.cuh"
#include "ops/common/online_softmax.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::ops::cuda::split {

// The template argument of SplitKernel. kOfChunk: the queries are those of several tokens.
template <int kDim, bool kOfChunk = false>
struct RowTiles {
  static constexpr int kHeadDim = kDim;
  static constexpr bool kChunk = kOfChunk;
  static constexpr int kWarps = 8, kQueries = kSplitQueries;
  static constexpr int kStages = kHeadDim == 64 ? 4 : kHeadDim == 128 ? 3 : 2;
  static constexpr int kRowBytes = kHeadDim * 2 * 2;
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr uint32_t kLonger = 6;  // argument of DealTiles
  static constexpr bool kSlots = false;   // whether slots are always present
  // A warp's result [kQueries][kHeadDim] f32 is put into a stage that holds no tile.
  static_assert(kStageBytes >= kQueries * kHeadDim * 4);
  using Results = WarpResults<kWarps, kQueries>;

  // Index of a lane's row in a tile among the pair's rows; -1: none.
  struct Places {
    using Place = AttendedRows::Place;
    using Lane = RowOfTile;
    static constexpr bool kChunk = kOfChunk;
    AttendedRows rows;

    __device__ explicit Places(Results*) {}
    __device__ void Of(const AttendedRows& of_pair) { rows = of_pair; }
    __device__ static uint32_t Tiles(const AttendedRows& rows) {
      return static_cast<uint32_t>(rows.total + kTileRows - 1) / kTileRows;
    }
    __device__ AttendedRows::Place At(uint32_t tile, bool ask, bool* newest) const {
      AttendedRows::Place place;
      const auto row = static_cast<int32_t>(tile * kTileRows + threadIdx.x % kTileRows);
      if (row < rows.total) {
        place = rows.At(row);
        if (ask) PrefetchBytesToL2(place.row, rows.list.row_bytes);
      }
      *newest = row + 1 == rows.total;
      return place;
    }
  };

  __device__ static void Prepare(uint32_t) {}

  // A lane's row; null if it is not attended.
  using Row = const std::byte*;
  __device__ static Row Arrived(const SplitProblem&, const RowOfTile& row) {
    return row.Attended() ? row.row : nullptr;
  }

  // Which rows of the tiles in flight are attended, 16 bits per tile, the next tile's first.
  struct Attended {
    uint64_t bits = 0;
    __device__ void Add(unsigned rows) {
      bits |= static_cast<uint64_t>(rows) << 16 * (kStages - 1);
    }
    __device__ unsigned Next(uint32_t, int) const { return static_cast<unsigned>(bits & 0xffffu); }
    __device__ void Pass() { bits >>= 16; }
  };

  // A lane's part of the queries, as the first operand of the products.
  struct Queries {
    uint32_t q[kHeadDim / 16][4] = {};
    int32_t context[2] = {};  // tokens that queries lane / 4 and lane / 4 + 8 attend; of a chunk

    __device__ void Load(const AttentionArrays& a, const SplitProblem::Queries<kChunk>& queries) {
      const int lane = threadIdx.x % 32;
      const float* of_query[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = lane / 4 + h * 8;
        of_query[h] = a.q + queries.Row(a, r) * a.q_stride + queries.Column(a, r);
        if constexpr (kChunk) context[h] = queries.context + r / a.group;
      }
#pragma unroll
      for (int s = 0; s < kHeadDim / 16; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = lane / 4 + i % 2 * 8, c = s * 16 + lane % 4 * 2 + i / 2 * 8;
          q[s][i] = r < queries.count ? a.ScaledPair(of_query[i % 2], c) : 0;
        }
      }
    }
  };

  // A warp's running softmax over tiles of 16 rows for 16 queries. Lane l holds query rows l / 4
  // and l / 4 + 8 in the layout of a matrix product's result.
  using State = SoftmaxState<kHeadDim / 8>;

  // tile: its index among the pair's.
  __device__ static void Attend(const AttentionArrays& a, uint32_t stage, unsigned visible,
                                uint32_t tile, const Queries& queries, State* state) {
    const auto& q = queries.q;
    const int lane = threadIdx.x % 32;
    float scores[2][4] = {};
    {
      const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
      for (int s = 0; s < kHeadDim / 16; ++s) {
        uint32_t k[4];
        LoadMatrices(k, stage + SwizzledOffset(row, 2 * s + lane / 8 % 2, kRowBytes));
        MultiplyAdd(scores[0], q[s], k[0], k[1]);
        MultiplyAdd(scores[1], q[s], k[2], k[3]);
      }
    }
    a.cap.Apply(scores);
    const auto shown = [&](int half, int i) {
      const int row = half * 8 + lane % 4 * 2 + i % 2;
      if constexpr (kChunk) {
        return static_cast<int32_t>(tile * kTileRows) + row < queries.context[i / 2];
      }
      return (visible >> row & 1) != 0;
    };
    float highest[2] = {state->maximum[0], state->maximum[1]};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (shown(t, i)) highest[i / 2] = fmaxf(highest[i / 2], scores[t][i]);
      }
    }
    bool rescale = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      highest[h] = fminf(QuadMax(highest[h]), kLargestScore);
      rescale |= highest[h] != state->maximum[h];
    }
    if (__any_sync(kAll, rescale)) {
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factor[h] = Exp2(state->maximum[h] - highest[h]);
        state->maximum[h] = highest[h];
        state->sum[h] *= factor[h];
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state->out[n][i] *= factor[i / 2];
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = shown(t, i) ? CarefulExp2(scores[t][i] - highest[i / 2]) : 0.0f;
        scores[t][i] = p;
        state->sum[i / 2] += p;
      }
    }
    const uint32_t p[4] = {
        PackBf16(scores[0][0], scores[0][1]), PackBf16(scores[0][2], scores[0][3]),
        PackBf16(scores[1][0], scores[1][1]), PackBf16(scores[1][2], scores[1][3])};
    const int row = lane % 16;
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      uint32_t v[4];
      LoadTransposed(v, stage + SwizzledOffset(row, kHeadDim / 8 + 2 * n + lane / 16, kRowBytes));
      MultiplyAdd(state->out[2 * n], p, v[0], v[1]);
      MultiplyAdd(state->out[2 * n + 1], p, v[2], v[3]);
    }
  }

  // Copies a tile's rows, held by lanes `half` * 16 and up, into a stage. Called by a whole warp;
  // commits the copies.
  __device__ static void Copy(const SplitProblem& p, Row own, int half, uint32_t stage,
                              Attended* tiles) {
    constexpr int kChunks = kHeadDim / 8;  // of K, and of V
    const int lane = threadIdx.x % 32, first = half * kTileRows;
    const unsigned attended = __ballot_sync(kAll, own != nullptr) >> first & 0xffffu;
    if (attended != 0) {
      // Rows that are not attended and columns beyond head_dim become zeros, since anything
      // multiplied by zero must be a finite number. The addresses of such rows are not read, but
      // must be valid.
      const auto* any = reinterpret_cast<const std::byte*>(p.arrays.q);
      const int chunks = p.arrays.head_dim / 8;
#pragma unroll
      for (int i = 0; i < kTileRows * 2 * kChunks / 32; ++i) {
        const int at = i * 32 + lane;
        const int r = at / (2 * kChunks), c = at % (2 * kChunks);
        const auto* row = reinterpret_cast<const std::byte*>(
            __shfl_sync(kAll, reinterpret_cast<unsigned long long>(own), first + r));
        const int part = c / kChunks, chunk = c % kChunks;
        const bool present = (attended >> r & 1) != 0 && chunk < chunks;
        CopyChunk(stage + SwizzledOffset(r, c, kRowBytes),
                  present ? row + (part * chunks + chunk) * 16 : any, present);
      }
    }
    CommitCopies();
    tiles->Add(attended);
  }

  // Writes a warp's result for the other warps to `memory`, which is at `place` in shared memory
  // and has room for its out.
  __device__ static void Leave(const State& state, int queries, float* memory, int32_t place,
                               Results* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) shared->out[warp] = place;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane / 4 + 8 * h;
      const float sum = QuadSum(state.sum[h]);
      if (lane % 4 == 0) {
        shared->maximum[warp][r] = state.maximum[h];
        shared->sum[warp][r] = sum;
      }
      if (r < queries) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          *reinterpret_cast<float2*>(memory + r * kHeadDim + n * 8 + lane % 4 * 2) =
              make_float2(state.out[n][2 * h], state.out[n][2 * h + 1]);
        }
      }
    }
  }
};

}  // namespace litecache::ops::cuda::split
