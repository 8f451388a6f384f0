// The tiles of a decode attention over slots that keep 8-bit codes (slots/code_slots.h): 16 rows of
// codes or 8 bf16 rows, which take the same bytes, for up to 8 queries.
//
// A tile's rows are the rows of its matrix products and the queries their columns, so that a warp's
// result takes half the registers of one for 16 queries: codes need registers for their conversion
// to bf16. E4M3 and int8 are exact in bf16. K's scale multiplies the score, V's the probability,
// both in f32 before any rounding.
//
// A tile within pages of whole tiles is copied as three runs of bytes, issued by one lane: codes,
// scales and updates; whether a slot is attended is checked after its tile has arrived. Copies of
// 16 bytes by all lanes took 1.13 times as long over a million tokens' rows
// (lab/notes/gpu/kernels.md); they are used for other head dimensions, rows that are not codes, and
// GPUs before sm_90. Codes and scales of slots that are not attended are copied, too: any code is a
// finite number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attention_arrays.cuh"
#include "ops/attention/code_pairs.cuh"
#include "ops/attention/code_places.cuh"
#include "ops/attention/split_merge.cuh"
#include "ops/attention/split_problem.cuh"
#include "ops/common/bulk_copies.cuh"
#include "ops/common/online_softmax.cuh"
#include "ops/common/shared_words.cuh"
#include "ops/common/tensor_core.cuh"

namespace litecache::ops::cuda::split {

// The template argument of SplitKernel.
template <int kDim, RowEncoding kEncoding, int kTheWarps, int kTheStages, bool kRuns>
struct CodeTiles {
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarps = kTheWarps, kStages = kTheStages;
  static constexpr int kQueries = 8;
  static constexpr bool kChunk = false;
  static constexpr int kTileBytes = kTileRows * 2 * kHeadDim;
  // Behind a tile: its rows' factors {for scores, for probabilities}; for codes the updates that
  // last selected them; which rows are present, and the update that marks attended slots; and the
  // barrier of the runs copied there.
  static constexpr int kFactors = kTileBytes, kUpdates = kFactors + kTileRows * 8;
  static constexpr int kPresent = kUpdates + kTileRows * 4, kBarrier = kPresent + 8;
  // Rounded up to whole groups of chunks, as ChunkBehind requires.
  static constexpr int kStageBytes = kUpdates + 128;
  static_assert(kBarrier + 8 <= kStageBytes);
  static constexpr int kWarpBytes = kStages * kStageBytes;
  // Argument of DealTiles. If blocks have tiles of two pairs, attention of 100,000 rows takes 70 us
  // instead of 63.
  static constexpr uint32_t kLonger = 40;
  static constexpr bool kSlots = true;
  // A warp's result [kQueries][kHeadDim] f32 is put into a stage that holds no tile.
  static_assert(kTileBytes >= kQueries * kHeadDim * 4);
  // Also holds the AttendedRows of the pairs whose tiles a warp's halves read: a lane has no
  // registers for them.
  struct Results : WarpResults<kWarps, kQueries> {
    alignas(AttendedRows) std::byte rows[2 * kWarps][sizeof(AttendedRows)];
  };
  using Codes = CodePairs<kEncoding>;
  // For E4M3, the factor 2^-120 of a value is undone in two steps that cannot overflow: one half is
  // in the row's factor, the other in the factor of all scores and of all results.
  static constexpr float kHalfUnit = kEncoding == RowEncoding::kFp8 ? 0x1p60f : 1;
  static_assert(kHalfUnit * kHalfUnit * Codes::kUnit == 1);

  static constexpr unsigned kIsCodes = 1u << 16;  // flag next to the bits of the attended rows

  using Places = CodePlaces;

  // Computes an address from what has been loaded.
  using Row = Places::Row;
  __device__ static Row Arrived(const SplitProblem& p, const Places::Lane& next) {
    const int32_t unit = next.codes ? CodeBytes(p) : 1;
    return {next.page + static_cast<int64_t>(next.at) * unit, next.at, next.present, next.codes,
            next.update};
  }

  // Call before copying anything, by a whole warp.
  __device__ static void Prepare(uint32_t stages) {
    if constexpr (kRuns) {
      if (threadIdx.x % 32 < kStages) {
        InitBarrier(stages + threadIdx.x % 32 * kStageBytes + kBarrier);
        BeforeRuns();
      }
      __syncwarp();
    }
  }

  // Tracks which rows of the tiles in flight are attended; that information is in their stages.
  struct Attended {
    uint32_t phases = 0;  // of the stages' barriers

    // Waits for the tile if it holds codes. index: the stage's.
    __device__ unsigned Next(uint32_t stage, int index) {
      const uint2 present = LoadSharedWords(stage + kPresent);
      if ((present.x & kIsCodes) == 0) return present.x;
      if constexpr (kRuns) {
        WaitForRuns(stage + kBarrier, phases >> index & 1);
        phases ^= 1u << index;
      }
      const uint32_t update = LoadShared(stage + kUpdates + 4 * (threadIdx.x % kTileRows));
      const unsigned rows = __ballot_sync(kAll, update == present.y) & present.x & 0xffffu;
      return rows != 0 ? rows | kIsCodes : 0;
    }
    __device__ void Pass() {}
  };

  // A lane's part of the queries, as the second operand of the products.
  struct Queries {
    uint32_t q[kHeadDim / 16][2] = {};

    __device__ void Load(const AttentionArrays& a, const SplitProblem::Queries<kChunk>& queries) {
      const int lane = threadIdx.x % 32, r = lane / 4;
      const float* own = a.q + queries.row * a.q_stride + queries.column + r * a.head_dim;
#pragma unroll
      for (int s = 0; s < kHeadDim / 16; ++s) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = s * 16 + lane % 4 * 2 + i * 8;
          q[s][i] = r < queries.count ? a.ScaledPair(own, c) : 0;
        }
      }
    }
  };

  // A warp's running softmax for 8 queries. Lane l holds queries 2 (l % 4) and the next one: of the
  // sums its own rows' part, of `out` channels l / 4 (of 16) and l / 4 + 8, for both queries. The
  // maximum is only raised when scores exceed it by a margin.
  using State = SoftmaxState<kHeadDim / 16>;

  __device__ static void Attend(const AttentionArrays& arrays, uint32_t stage, unsigned visible,
                                uint32_t, const Queries& queries, State* state) {
    const auto& q = queries.q;
    const int lane = threadIdx.x % 32;
    const bool codes = (visible & kIsCodes) != 0;
    // Two accumulators, because a product waits for the previous one with the same accumulator.
    float scores[4] = {}, more[4] = {};
    if (codes) {
      const uint32_t own = stage + SwizzledOffset(lane % 16, lane / 16, 2 * kHeadDim);
#pragma unroll
      for (int s = 0; s < kHeadDim / 16; s += 2) {
        uint32_t k[4];
        LoadMatrices(k, ChunkBehind(own, s));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t top = k[2 * i], bottom = k[2 * i + 1];
          const uint32_t a[4] = {
              Codes::template Expand<0, 1>(top), Codes::template Expand<0, 1>(bottom),
              Codes::template Expand<2, 3>(top), Codes::template Expand<2, 3>(bottom)};
          MultiplyAdd(i == 0 ? scores : more, a, q[s + i][0], q[s + i][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] = (scores[i] + more[i]) * kHalfUnit;
    } else {
      const uint32_t own = stage + SwizzledOffset(lane % 8, lane / 8, 4 * kHeadDim);
#pragma unroll
      for (int s = 0; s < kHeadDim / 16; s += 2) {
        uint32_t k[4];
        LoadMatrices(k, ChunkBehind(own, 2 * s));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t a[4] = {k[2 * i], 0, k[2 * i + 1], 0};
          MultiplyAdd(i == 0 ? scores : more, a, q[s + i][0], q[s + i][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] += more[i];
    }
    // Factors of rows l / 4 and l / 4 + 8.
    float2 factors[2];
    bool shown[2], passed = false;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int row = lane / 4 + 8 * t;
      factors[t] = LoadSharedPair(stage + kFactors + 8 * row);
      shown[t] = (visible >> row & 1) != 0;
      factors[t].x *= kHalfUnit;
      // A slot that is not attended may hold a NaN, which stays NaN when multiplied by zero.
      factors[t].y = shown[t] ? factors[t].y * kHalfUnit : 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) scores[2 * t + h] *= factors[t].x;
    }
    arrays.cap.Apply(scores);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      passed |= shown[i / 2] && scores[i] > state->maximum[i % 2] + kSlack;
    }
    if (__any_sync(kAll, passed)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float highest = state->maximum[h];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          if (shown[t]) highest = fmaxf(highest, scores[2 * t + h]);
        }
        highest = fminf(MaxOverRows(highest), kLargestScore);
        const float factor = Exp2(state->maximum[h] - highest);
        state->maximum[h] = highest;
        state->sum[h] *= factor;
#pragma unroll
        for (int n = 0; n < kHeadDim / 16; ++n) {
          state->out[n][h] *= factor;
          state->out[n][2 + h] *= factor;
        }
      }
    }
    uint32_t p[2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float probability[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // Like CarefulExp2, except that scores may exceed the maximum by kSlack.
        const float x = fminf(scores[2 * t + h] - state->maximum[h], kSlack);
        probability[h] = shown[t] ? Exp2(fmaxf(x, -126.0f)) : 0.0f;
        state->sum[h] += probability[h];
        probability[h] *= factors[t].y;
      }
      p[t] = Transposed(PackBf16(probability[0], probability[1]));
    }
    if (codes) {
      const uint32_t own = stage + SwizzledOffset(lane % 16, lane / 16, 2 * kHeadDim);
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; n += 2) {
        uint32_t v[4];
        LoadTransposed(v, ChunkBehind(own, kHeadDim / 16 + n));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t top = v[2 * i], bottom = v[2 * i + 1];
          const uint32_t a[4] = {
              Codes::template Expand<0, 2>(top), Codes::template Expand<1, 3>(top),
              Codes::template Expand<0, 2>(bottom), Codes::template Expand<1, 3>(bottom)};
          MultiplyAdd(state->out[n + i], a, p[0], p[1]);
        }
      }
    } else {
      const uint32_t own = stage + SwizzledOffset(lane % 8, lane / 8, 4 * kHeadDim);
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; n += 2) {
        uint32_t v[4];
        LoadTransposed(v, ChunkBehind(own, kHeadDim / 8 + 2 * n));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t a[4] = {v[2 * i], v[2 * i + 1], 0, 0};
          MultiplyAdd(state->out[n + i], a, p[0], p[1]);
        }
      }
      if constexpr (kRuns) BeforeRuns();  // rows were copied by another mechanism before
    }
  }

  // Copies a tile's rows, held by lanes `half` * 16 and up, into a stage. Called by a whole warp;
  // commits the copies.
  __device__ static void Copy(const SplitProblem& p, const Row& own, int half, uint32_t stage,
                              Attended*) {
    const int lane = threadIdx.x % 32, first = half * kTileRows;
    const unsigned present = __ballot_sync(kAll, own.present) >> first & 0xffffu;
    const bool codes = (__ballot_sync(kAll, own.present && own.codes) >> first & 1) != 0;
    if (lane == first) StoreShared(stage + kPresent, present | (codes ? kIsCodes : 0), own.update);
    if (present != 0) {
      // In a page, codes and positions are followed by updates, then scales.
      const int32_t slots = p.tables.tables.codes.page_slots, row_bytes = CodeBytes(p);
      const std::byte* updates = own.row + slots * (row_bytes + 4) - own.at * (row_bytes - 4);
      const std::byte* scales = own.row + slots * (row_bytes + 8) - own.at * (row_bytes - 8);
      if (codes && kRuns) {
        if (lane == first) {
          const uint32_t barrier = stage + kBarrier;
          ExpectBytes(barrier, kTileBytes + kTileRows * 12);
          CopyRun(stage, own.row, kTileBytes, barrier);
          CopyRun(stage + kUpdates, updates, kTileRows * 4, barrier);
          CopyRun(stage + kFactors, scales, kTileRows * 8, barrier);
        }
      } else if (codes) {
        CopyRows<2 * kHeadDim, 4>(p, own.present ? own.row : Any(p), first, present, stage);
        if (lane / kTileRows == half) {
          const int at = lane % kTileRows;
          CopyWord(stage + kUpdates + 4 * at, own.present ? updates : Any(p), own.present);
          CopyPair(stage + kFactors + 8 * at, own.present ? scales : Any(p), own.present);
        }
      } else {
        CopyRows<4 * kHeadDim, 1>(p, own.present ? own.row : Any(p), first, present, stage);
        if (lane / kTileRows == half) {
          StoreShared(stage + kFactors + 8 * (lane % kTileRows),
                      make_float2(1 / kHalfUnit, 1 / kHalfUnit / kHalfUnit));
        }
      }
    }
    CommitCopies();
  }

  // Writes a warp's result for the other warps to `memory`, which is at `place` in shared memory
  // and has room for its out.
  __device__ static void Leave(const State& state, int queries, float* memory, int32_t place,
                               Results* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) shared->out[warp] = place;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane % 4 * 2 + h;
      const float sum = SumOverRows(state.sum[h]);
      if (lane / 4 == 0) {
        shared->maximum[warp][r] = state.maximum[h];
        shared->sum[warp][r] = sum;
      }
      if (r < queries) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 16; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            memory[r * kHeadDim + n * 16 + i * 8 + lane / 4] = state.out[n][2 * i + h] * kHalfUnit;
          }
        }
      }
    }
    if constexpr (kRuns) BeforeRuns();
  }

 private:
  // Scores may exceed the maximum by this many powers of two before it is raised.
  static constexpr float kSlack = 8;

  // The address of the chunk that is `behind` chunks after a row's first group, whose address is
  // `chunk`: swizzling is an exclusive or with bits below a stage's alignment.
  __device__ static uint32_t ChunkBehind(uint32_t chunk, int behind) {
    return (chunk ^ static_cast<uint32_t>(behind % 8 * 16)) +
           static_cast<uint32_t>(behind / 8 * 128);
  }

  // The maximum over the lanes that share a query.
  __device__ static float MaxOverRows(float x) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
    return x;
  }
  __device__ static float SumOverRows(float x) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(kAll, x, step);
    return x;
  }

  // Bytes of a row of codes.
  __device__ static int32_t CodeBytes(const SplitProblem& p) {
    return 2 * (kRuns ? kHeadDim : p.arrays.head_dim);
  }

  // A readable address, for copies of zero bytes.
  __device__ static const std::byte* Any(const SplitProblem& p) {
    return reinterpret_cast<const std::byte*>(p.arrays.q);
  }

  // Copies as many rows of kRowBytes as fit in a stage; runs of kTogether rows are adjacent. Rows
  // that are not attended and columns beyond head_dim become zeros, since anything multiplied by
  // zero must be a finite number. The addresses of such rows are not read, but must be valid.
  template <int kRowBytes, int kTogether>
  __device__ static void CopyRows(const SplitProblem& p, const std::byte* row, int first,
                                  unsigned attended, uint32_t stage) {
    constexpr int kChunks = kRowBytes / 16;                   // of a row
    constexpr int kRows = kChunks < 32 ? 32 / kChunks : 1;    // in one copy by the whole warp
    constexpr int kCopies = kChunks > 32 ? kChunks / 32 : 1;  // for one row
    static_assert(kTogether == 1 || kTogether % kRows == 0);
    const int lane = threadIdx.x % 32;
    const int own_row = kChunks < 32 ? lane / kChunks : 0, own_chunk = lane % kChunks;
    const int row_bytes = p.arrays.head_dim * (kRowBytes / kHeadDim), chunks = row_bytes / 32;
    const std::byte* from = nullptr;
    // Chunks of whole tiles are in the right order already.
    const bool turned =
        kTogether > 1 && WholeCodeTiles(p.arrays.head_dim, p.tables.tables.codes.page_slots);
    const unsigned mine =
        kCopies > 1 || own_chunk % (kChunks / 2) < chunks ? attended >> own_row : 0;
#pragma unroll
    for (int r = 0; r < kTileBytes / kRowBytes; r += kRows) {
      if (kTogether == 1 || r % kTogether == 0) {
        from = reinterpret_cast<const std::byte*>(
            __shfl_sync(kAll, reinterpret_cast<unsigned long long>(row),
                        first + r + (kTogether == 1 ? own_row : 0)));
      }
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int c = i * 32 + own_chunk, part = c / (kChunks / 2), chunk = c % (kChunks / 2);
        const int behind = kTogether == 1 ? 0 : (r % kTogether + own_row) * row_bytes;
        const bool present = (mine >> r & 1) != 0 && (kCopies == 1 || chunk < chunks);
        const int at = r + own_row;
        CopyChunk(stage + (turned ? static_cast<uint32_t>(at * kRowBytes + c * 16)
                                  : SwizzledOffset(at, c, kRowBytes)),
                  from + behind + (part * chunks + chunk) * 16, present);
      }
    }
  }
};

}  // namespace litecache::ops::cuda::split
