// Decode attention: one query token a sequence over any number of rows.
//
// The rows of all pairs (sequence, KV head, up to 16 query heads) are cut into tiles of 16 and the
// tiles into equal runs, one a block, so that every SM reads as much as every other whatever the
// batch. A run may span pairs, and a pair runs; where several blocks share a pair each leaves a
// partial result (Flash-Decoding), and the one that comes last merges them, in the blocks' order.
//
// Within a block each warp attends tiles of its own: it copies them into its own part of shared
// memory, several under way, and waits for no other warp until the pair ends; the next pair's tiles
// are under way by then. A group's query heads are the rows of a matrix product, so that a row is
// read once for all of them.
#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention/attention_arrays.cuh"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/split_merge.cuh"
#include "ops/cuda/attention/split_problem.cuh"
#include "ops/cuda/common/online_softmax.cuh"
#include "ops/cuda/common/overlap.cuh"
#include "ops/cuda/common/shared_memory.cuh"
#include "ops/cuda/common/vectors.cuh"

namespace litecache::ops::cuda {
namespace split {
namespace {

template <int kHeadDim>
struct SplitShape {
  static constexpr int kStages = kHeadDim == 64 ? 4 : kHeadDim == 128 ? 3 : 2;
  static constexpr int kRowBytes = kHeadDim * 2 * 2;
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  // A warp's result [kQueries][kHeadDim] f32 lies in a stage that holds no tile.
  static_assert(kStageBytes >= kQueries * kHeadDim * 4);
};

// A warp's running softmax over tiles of 16 rows for 16 queries. Lane l holds query rows l / 4 and
// l / 4 + 8 in the layout of a matrix product's result.
template <int kHeadDim>
struct WarpState {
  float maximum[2], sum[2];
  float out[kHeadDim / 8][4];
};

template <int kHeadDim>
__device__ void AttendTile(uint32_t stage, unsigned visible, const uint32_t (&q)[kHeadDim / 16][4],
                           WarpState<kHeadDim>* state) {
  constexpr int kRowBytes = SplitShape<kHeadDim>::kRowBytes;
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
  const auto shown = [&](int tile, int i) {
    return (visible >> (tile * 8 + lane % 4 * 2 + i % 2) & 1) != 0;
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
  const uint32_t p[4] = {PackBf16(scores[0][0], scores[0][1]), PackBf16(scores[0][2], scores[0][3]),
                         PackBf16(scores[1][0], scores[1][1]),
                         PackBf16(scores[1][2], scores[1][3])};
  const int row = lane % 16;
#pragma unroll
  for (int n = 0; n < kHeadDim / 16; ++n) {
    uint32_t v[4];
    LoadTransposed(v, stage + SwizzledOffset(row, kHeadDim / 8 + 2 * n + lane / 16, kRowBytes));
    MultiplyAdd(state->out[2 * n], p, v[0], v[1]);
    MultiplyAdd(state->out[2 * n + 1], p, v[2], v[3]);
  }
}

// A tile's rows, known to lanes `half` * 16 and up, into a stage; returns which of them are
// attended. Whole warp; commits the copies.
template <int kHeadDim>
__device__ unsigned CopyTile(const SplitProblem& p, const AttendedRows::Place& place, int half,
                             uint32_t stage) {
  constexpr int kChunks = kHeadDim / 8;  // of K, and of V
  const int lane = threadIdx.x % 32, first = half * kTileRows;
  const unsigned attended = __ballot_sync(kAll, place.Attended()) >> first & 0xffffu;
  if (attended != 0) {
    // Rows that are not attended and what lies behind head_dim become zeros: nothing but numbers
    // may be multiplied by zero. Their addresses are not read from, yet have to be some.
    const auto* any = reinterpret_cast<const std::byte*>(p.arrays.q);
    const int chunks = p.arrays.head_dim / 8;
#pragma unroll
    for (int i = 0; i < kTileRows * 2 * kChunks / 32; ++i) {
      const int at = i * 32 + lane;
      const int r = at / (2 * kChunks), c = at % (2 * kChunks);
      const auto* row = reinterpret_cast<const std::byte*>(
          __shfl_sync(kAll, reinterpret_cast<unsigned long long>(place.row), first + r));
      const int part = c / kChunks, chunk = c % kChunks;
      const bool present = (attended >> r & 1) != 0 && chunk < chunks;
      CopyChunk(stage + SwizzledOffset(r, c, SplitShape<kHeadDim>::kRowBytes),
                present ? row + (part * chunks + chunk) * 16 : any, present);
    }
  }
  CommitCopies();
  return attended;
}

// A lane's part of the queries as the first operand of the products.
template <int kHeadDim>
__device__ void LoadQueries(const AttentionArrays& a, const SplitProblem::Queries& queries,
                            uint32_t (&q)[kHeadDim / 16][4]) {
  const int lane = threadIdx.x % 32;
  const float* first = a.q + queries.row * a.q_stride + queries.column;
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 4 + i % 2 * 8, c = s * 16 + lane % 4 * 2 + i / 2 * 8;
      q[s][i] = 0;
      if (r < queries.count && c < a.head_dim) {
        const auto value = *reinterpret_cast<const float2*>(first + r * a.head_dim + c);
        q[s][i] = PackBf16(value.x * a.scale, value.y * a.scale);
      }
    }
  }
}

// A warp's result for the others: `memory`, at `place` of the shared memory, has room for its out.
template <int kHeadDim>
__device__ void LeaveResult(const WarpState<kHeadDim>& state, int queries, float* memory,
                            int32_t place, WarpResults* shared) {
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

template <int kHeadDim>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    SplitKernel(const __grid_constant__ SplitProblem p) {
  using Shape = SplitShape<kHeadDim>;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ WarpResults results;
  const uint32_t warps = blockDim.x / 32;
  auto* ends = reinterpret_cast<uint32_t*>(shared + warps * Shape::kWarpBytes);
  const uint32_t warp = threadIdx.x / 32;
  const int32_t pairs = p.Pairs();
  // Resident rows are older than the step, but for the newest: what depends on the kernels before
  // this one is that row and the queries, and the copies of the others begin beside those kernels.
  bool waited = p.tables.hybrid || p.tables.listed || p.tables.resident.table.table != kResident;
  AskForTables(p, pairs);
  if (threadIdx.x == 0) AskFor(p.arrivals + blockIdx.x);
  if (waited) WaitForKernelBefore();
  CountTiles(p, pairs, results.tiles, ends);
  const TileSplit split = DealTiles(pairs, ends);
  const uint32_t block = blockIdx.x;
  if (block >= split.blocks) {
    if (!waited) WaitForKernelBefore();
    return;
  }
  uint32_t begin = split.Begin(block);
  const uint32_t end = split.Begin(block + 1);

  // The last pair that begins at or before the block's first tile: pairs without tiles are passed.
  int32_t pair = 0;
  for (int32_t after = pairs; after - pair > 1;) {
    const int32_t middle = (pair + after) / 2;
    (ends[middle] <= begin ? pair : after) = middle;
  }

  // Tile i of this warp lies in stage i % kStages. All stages but one are under way; that one is
  // the last that was attended. The loop over tiles is where all of them are asked for, the first
  // ones too: its first turns, `lead` of them, attend none. (Code is fetched as slowly as data is,
  // and a short context has time for no instruction twice.)
  const uint32_t own_address = SharedAddress(shared) + warp * Shape::kWarpBytes;
  TileReader reader(p, ends, begin + warp, end, pair);
  AttendedRows::Place places, next_places;  // of two tiles each
  bool newest = false, next_newest = false;
  uint64_t attended = 0;  // 16 bits a tile, the next one's first
  int half = 0, stage = Shape::kStages - 1, free_stage = Shape::kStages - 2;
  int lead = Shape::kStages + 1;
  for (uint32_t tile = begin + warp; begin < end; ++pair) {
    const uint32_t pair_end = ends[pair + 1];
    const uint32_t stop = pair_end < end ? pair_end : end;
    if (stop <= begin) continue;
    const SplitProblem::Queries queries = p.QueriesOf(pair);
    if (tile < stop) {
      uint32_t q[kHeadDim / 16][4] = {};
      bool has_queries = false;
      WarpState<kHeadDim> state;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        state.maximum[h] = -kLargestScore;
        state.sum[h] = 0;
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.out[n][i] = 0;
      }
      while (tile < stop) {
        WaitForCopies<Shape::kStages - 2>();
        __syncwarp();  // the other lanes' copies; and all have read the stage that is written next
        if (half == 0) {
          places = next_places;
          newest = next_newest;
          next_places = reader.Next(p.tables.hybrid && lead > 0, &next_newest);
        }
        if (!waited && __any_sync(kAll, newest)) {
          WaitForKernelBefore();
          waited = true;
        }
        const uint64_t some =
            CopyTile<kHeadDim>(p, places, half, own_address + free_stage * Shape::kStageBytes);
        attended |= some << 16 * (Shape::kStages - 1);
        half ^= 1;
        if (!has_queries && lead <= 1) {  // while the first tiles are on their way
          if (!waited) WaitForKernelBefore();
          waited = has_queries = true;
          LoadQueries<kHeadDim>(p.arrays, queries, q);
        }
        if (lead > 0) {
          --lead;
        } else {
          const auto visible = static_cast<unsigned>(attended & 0xffffu);
          if (visible != 0) {
            AttendTile<kHeadDim>(own_address + stage * Shape::kStageBytes, visible, q, &state);
          }
          tile += warps;
        }
        attended >>= 16;
        free_stage = stage;
        stage = stage + 1 < Shape::kStages ? stage + 1 : 0;
      }
      __syncwarp();  // all have read the stage that the result is written to
      const int32_t place = warp * Shape::kWarpBytes + free_stage * Shape::kStageBytes;
      LeaveResult<kHeadDim>(state, queries.count, reinterpret_cast<float*>(shared + place), place,
                            &results);
    } else if (threadIdx.x % 32 == 0) {
      results.out[warp] = -1;
    }
    if (!waited) WaitForKernelBefore();
    waited = true;
    if (stop == end) LetNextKernelStart();  // nothing more is read
    __syncthreads();
    const uint32_t first = split.BlockOf(ends[pair]), last = split.BlockOf(pair_end - 1);
    MergeWarps<kHeadDim>(p, queries, results, shared,
                         first == last ? nullptr : p.Partial(pair, block));
    if (first == last) {
      __syncthreads();  // the results' memory may be written to again
    } else {
      Arrive(p, pair, queries, first, last, &results);
    }
    begin = stop;
  }
}

template <int kHeadDim>
void Launch(CudaStream& stream, const SplitProblem& problem) {
  using Shape = SplitShape<kHeadDim>;
  const size_t ends = (static_cast<size_t>(problem.Pairs()) + 1) * 4;
  static const size_t most = AllowSharedMemory(SplitKernel<kHeadDim>);
  LC_CHECK(Shape::kWarpBytes + ends <= most, "too many sequences and heads for one attention");
  const size_t warps = std::min<size_t>((most - ends) / Shape::kWarpBytes, kMaxWarps);
  const int64_t blocks = std::min<int64_t>(stream.sm_count(), kMaxSplitBlocks);
  LaunchOverlapping(stream, SplitKernel<kHeadDim>, static_cast<unsigned>(blocks),
                    static_cast<unsigned>(warps * 32), warps * Shape::kWarpBytes + ends, problem);
}

}  // namespace
}  // namespace split

void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch) {
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  CudaStream& cuda = AsCuda(stream);
  split::SplitProblem p;
  p.tables = tables;
  p.arrays = AttentionArrays(operands, tables.kv_heads, table.format.head_dim);
  p.query_blocks = (p.arrays.group + split::kQueries - 1) / split::kQueries;
  p.queries = std::min(p.arrays.group, split::kQueries);
  p.arrivals = cuda.arrivals();
  p.partials = static_cast<float*>(scratch);
  if (p.arrays.head_dim <= 64) {
    split::Launch<64>(cuda, p);
  } else if (p.arrays.head_dim <= 128) {
    split::Launch<128>(cuda, p);
  } else {
    split::Launch<256>(cuda, p);
  }
}

}  // namespace litecache::ops::cuda
