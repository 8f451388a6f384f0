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
#include "ops/cuda/attention/split_tiles.cuh"
#include "ops/cuda/common/online_softmax.cuh"
#include "ops/cuda/common/overlap.cuh"
#include "ops/cuda/common/shared_memory.cuh"
#include "ops/cuda/common/vectors.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kMaxWarps = 8;
constexpr int kTileRows = 16;
constexpr int kQueries = kTileRows;  // rows of a product
constexpr unsigned kAll = 0xffffffffu;
static_assert(kQueries == kSplitQueries);
static_assert(kMaxSplitBlocks <= CudaStream::kArrivals);

struct SplitProblem {
  AttendedTables tables;
  AttentionArrays arrays;
  int32_t query_blocks = 0;  // of up to kQueries query heads, a group
  int32_t queries = 0;       // rows of a partial result: min(group, kQueries)
  uint32_t* arrivals = nullptr;
  float* partials = nullptr;

  struct Pair {
    int32_t sequence, head, query_block;
  };
  __host__ __device__ int32_t Pairs() const {  // of the sequences there may be
    return tables.step.capacity * tables.kv_heads * query_blocks;
  }
  __device__ Pair PairOf(int32_t pair) const {
    const int32_t list = pair / query_blocks, sequence = list / tables.kv_heads;
    return {sequence, list - sequence * tables.kv_heads, pair - list * query_blocks};
  }
  __device__ AttendedRows RowsOf(int32_t pair) const {
    const Pair at = PairOf(pair);
    return tables.Of(at.sequence, at.head, tables.step.sequences[at.sequence].past + 1);
  }
  // A pair's queries: their row of q and of out, their first column, their number.
  struct Queries {
    int32_t row, column, count;
  };
  __device__ Queries QueriesOf(int32_t pair) const {
    const Pair at = PairOf(pair);
    const int32_t first = at.query_block * kQueries, left = arrays.group - first;
    return {tables.step.sequences[at.sequence].first_row,
            (at.head * arrays.group + first) * arrays.head_dim, left < queries ? left : queries};
  }
  // Partial results: maximum [queries], sum [queries], out [queries][head_dim], the latter two
  // relative to the maximum. As blocks go up so do pairs: the sum of both names one.
  __device__ float* Partial(int32_t pair, uint32_t block) const {
    return partials + (static_cast<int64_t>(pair) + block) * queries * (arrays.head_dim + 2);
  }
};

template <int kHeadDim>
struct SplitShape {
  static constexpr int kStages = kHeadDim == 64 ? 4 : kHeadDim == 128 ? 3 : 2;
  static constexpr int kRowBytes = kHeadDim * 2 * 2;
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  // A warp's result [kQueries][kHeadDim] f32 lies in a stage that holds no tile.
  static_assert(kStageBytes >= kQueries * kHeadDim * 4);
};

// What the warps of a block tell each other at the end of a pair.
struct WarpResults {
  float maximum[kMaxWarps][kQueries], sum[kMaxWarps][kQueries];
  int32_t out[kMaxWarps];     // where in shared memory; negative: no tile of the pair
  uint32_t tiles[kMaxWarps];  // while tiles are counted
  bool last_to_arrive;
};

// Asks for what will be read of the sequences' tables, and of the state of their slots: the tables
// stay as they are for a whole step. Whole block.
__device__ void AskForTables(const SplitProblem& p, int32_t pairs) {
  const AttendedTables& t = p.tables;
  const int32_t count = *t.step.count;
  for (int32_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    const auto at = p.PairOf(pair);
    const StepSequence& sequence = t.step.sequences[at.sequence];
    AskFor(&sequence.pages[t.slots.table.table]);
    AskFor(&sequence.pages[t.resident.table.table]);
    if (t.tables.resident.lists > 0) AskFor(t.tables.resident.list_of_head + at.head);
    if (t.hybrid && t.tables.slots.lists > 0) {
      const int32_t list = t.tables.slots.list_of_head[at.head];
      const HeadState* heads = sequence.heads;
      if (at.sequence < count && list >= 0) AskFor(heads + list);
    }
  }
}

// Writes ends[0 .. pairs]: the tiles of the pairs before. Whole block.
__device__ void CountTiles(const SplitProblem& p, int32_t pairs, WarpResults* shared,
                           uint32_t* ends) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t warps = blockDim.x / 32;
  const int32_t count = *p.tables.step.count;
  uint32_t before = 0;
  for (int32_t begin = 0; begin < pairs; begin += blockDim.x) {
    const int32_t pair = begin + static_cast<int32_t>(threadIdx.x);
    uint32_t tiles = 0;
    if (pair < pairs) {
      const auto at = p.PairOf(pair);
      const StepSequence& sequence = p.tables.step.sequences[at.sequence];
      const int32_t rows = sequence.rows, past = sequence.past;  // beside count, not after it
      if (at.sequence < count && rows > 0) {
        const int32_t total = p.tables.Of(at.sequence, at.head, past + 1).total;
        tiles = static_cast<uint32_t>(total + kTileRows - 1) / kTileRows;
      }
    }
    uint32_t sum = tiles;  // of this lane and those before
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) shared->tiles[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += shared->tiles[w];
    if (pair < pairs) ends[pair + 1] = before + sum;
    for (int w = 0; w < warps; ++w) before += shared->tiles[w];
    __syncthreads();
  }
  if (threadIdx.x == 0) ends[0] = 0;
  __syncthreads();
}

// The blocks' runs. Few pairs are dealt so that no block has tiles of two, where that makes the
// runs little longer: `ends` are then those of pairs filled up to whole runs. Whole block.
__device__ TileSplit DealTiles(int32_t pairs, uint32_t* ends) {
  constexpr uint32_t kLonger = 6;  // tiles; what the end of a pair costs a block
  const uint32_t least = 2 * (blockDim.x / 32);
  const TileSplit even(ends[pairs], gridDim.x, least);
  if (pairs > 32) return even;
  const int32_t lane = threadIdx.x % 32;
  const uint32_t tiles = lane < pairs ? ends[lane + 1] - ends[lane] : 0;
  const uint32_t longest = __reduce_max_sync(kAll, tiles);
  const auto busy = static_cast<uint32_t>(__popc(__ballot_sync(kAll, tiles > 0)));
  if (busy == 0 || busy > gridDim.x) return even;
  const uint32_t blocks_a_pair = gridDim.x / busy;
  const uint32_t length = max((longest + blocks_a_pair - 1) / blocks_a_pair, least);
  if (length > max(even.length, least) + kLonger) return even;
  uint32_t sum = (tiles + length - 1) / length;  // runs of this lane's pair and those before
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  const uint32_t blocks = __shfl_sync(kAll, sum, 31);
  __syncthreads();
  if (threadIdx.x < 32 && lane < pairs) ends[lane + 1] = sum * length;
  __syncthreads();
  return TileSplit::Runs(blocks, length);
}

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

// A warp's tiles, two at a time: lanes 0 - 15 have the rows of one, lanes 16 - 31 those of the
// next.
struct TileReader {
  const SplitProblem& p;
  const uint32_t* ends;
  uint32_t tile, end;  // the lane's next tile; the block's end
  int32_t pair;
  uint32_t pair_begin = 0, pair_end = 0;
  AttendedRows rows;  // of the pair

  // The warp has tiles first, first + warps ... of those before `last`; `first_pair` is not behind
  // the pair of the first.
  __device__ TileReader(const SplitProblem& problem, const uint32_t* tile_ends, uint32_t first,
                        uint32_t last, int32_t first_pair)
      : p(problem),
        ends(tile_ends),
        tile(first + threadIdx.x % 32 / kTileRows * (blockDim.x / 32)),
        end(last),
        pair(first_pair) {}

  // The next two tiles; no rows behind the last tile. Loads what says where the rows are, which has
  // time until the result is used. newest: the row is the step's own. ask: for the rows, before it
  // is known whether they are attended.
  __device__ AttendedRows::Place Next(bool ask, bool* newest) {
    AttendedRows::Place place;
    *newest = false;
    if (tile < end) {
      if (tile >= pair_end) {
        while (tile >= ends[pair + 1]) ++pair;
        pair_begin = ends[pair];
        pair_end = ends[pair + 1];
        rows = p.RowsOf(pair);
      }
      const auto row =
          static_cast<int32_t>((tile - pair_begin) * kTileRows + threadIdx.x % kTileRows);
      if (row < rows.total) {
        place = rows.At(row);
        if (ask) AskForBytes(place.row, rows.list.row_bytes);
      }
      *newest = row + 1 == rows.total;
    }
    tile += 2 * (blockDim.x / 32);
    return place;
  }
};

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

// Results of the same query over different rows, brought to one maximum.
struct Merged {
  float maximum = -kLargestScore, sum = 0, low = 0, high = 0;

  template <int kCount>
  __device__ void Add(const float (&maxima)[kCount], const float (&sums)[kCount],
                      const float2 (&values)[kCount]) {
    float highest = maximum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) highest = fmaxf(highest, maxima[i]);
    const float kept = Exp2(maximum - highest);
    maximum = highest;
    sum *= kept;
    low *= kept;
    high *= kept;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float factor = Exp2(maxima[i] - highest);
      sum += factor * sums[i];
      low += factor * values[i].x;
      high += factor * values[i].y;
    }
  }
};

// The block's result of a pair, to out or, where it is a part, to `partial`. Whole block, after
// every warp has left its own in `memory`.
template <int kHeadDim>
__device__ void MergeWarps(const SplitProblem& p, const SplitProblem::Queries& queries,
                           const WarpResults& shared, const std::byte* memory, float* partial) {
  const int head_dim = p.arrays.head_dim, halves = head_dim / 2;
  const int warps = blockDim.x / 32;
  for (int i = threadIdx.x; i < queries.count * halves; i += blockDim.x) {
    const int r = i / halves, c = 2 * (i - r * halves);
    float maxima[kMaxWarps], sums[kMaxWarps];
    float2 values[kMaxWarps];
#pragma unroll
    for (int w = 0; w < kMaxWarps; ++w) {
      const int32_t out = w < warps ? shared.out[w] : -1;
      maxima[w] = out >= 0 ? shared.maximum[w][r] : -kLargestScore;
      sums[w] = out >= 0 ? shared.sum[w][r] : 0.0f;
      values[w] = out >= 0 ? *reinterpret_cast<const float2*>(memory + out + (r * kHeadDim + c) * 4)
                           : make_float2(0, 0);
    }
    Merged merged;
    merged.Add(maxima, sums, values);
    if (partial == nullptr) {
      p.arrays.Store(queries.row, queries.column + r * head_dim + c, merged.low / merged.sum,
                     merged.high / merged.sum);
      if (c == 0) {
        p.arrays.StoreLogSum(queries.row, queries.column + r * head_dim, merged.maximum,
                             merged.sum);
      }
      continue;
    }
    if (c == 0) {
      partial[r] = merged.maximum;
      partial[p.queries + r] = merged.sum;
    }
    *reinterpret_cast<float2*>(partial + 2 * p.queries + r * head_dim + c) =
        make_float2(merged.low, merged.high);
  }
}

// The partial results of blocks first .. last to out. Whole block.
__device__ void MergeBlocks(const SplitProblem& p, int32_t pair,
                            const SplitProblem::Queries& queries, uint32_t first, uint32_t last) {
  constexpr int kAtOnce = 16;
  const int head_dim = p.arrays.head_dim, halves = head_dim / 2;
  for (int i = threadIdx.x; i < queries.count * halves; i += blockDim.x) {
    const int r = i / halves, c = 2 * (i - r * halves);
    Merged merged;
    for (uint32_t begin = first; begin <= last; begin += kAtOnce) {
      float maxima[kAtOnce], sums[kAtOnce];
      float2 values[kAtOnce];
#pragma unroll
      for (uint32_t b = 0; b < kAtOnce; ++b) {
        const bool there = begin + b <= last;
        const float* partial = p.Partial(pair, there ? begin + b : last);
        maxima[b] = __ldcg(partial + r);
        sums[b] = __ldcg(partial + p.queries + r);
        values[b] =
            __ldcg(reinterpret_cast<const float2*>(partial + 2 * p.queries + r * head_dim + c));
        if (!there) maxima[b] = -INFINITY;
      }
      merged.Add(maxima, sums, values);
    }
    p.arrays.Store(queries.row, queries.column + r * head_dim + c, merged.low / merged.sum,
                   merged.high / merged.sum);
    if (c == 0) {
      p.arrays.StoreLogSum(queries.row, queries.column + r * head_dim, merged.maximum, merged.sum);
    }
  }
}

// Adds one; returns what was there.
__device__ uint32_t CountArrival(uint32_t* arrivals) {
#ifdef __CUDA_ARCH__
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(arrivals)
               : "memory");
  return before;
#else
  return (*arrivals)++;
#endif
}

// The block has written its partial result of the pair; merges them where it is the last. Whole
// block.
__device__ void Arrive(const SplitProblem& p, int32_t pair, const SplitProblem::Queries& queries,
                       uint32_t first, uint32_t last, WarpResults* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    // A block begins one pair at most that goes on behind it: the pair's counter is that block's.
    uint32_t* arrivals = p.arrivals + first;
    // Releases what the block has written, and acquires what those before it have.
    shared->last_to_arrive = CountArrival(arrivals) == last - first;
    if (shared->last_to_arrive) *arrivals = 0;  // as the next kernel wants it
  }
  __syncthreads();
  if (shared->last_to_arrive) MergeBlocks(p, pair, queries, first, last);
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
  CountTiles(p, pairs, &results, ends);
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

void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch) {
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  CudaStream& cuda = AsCuda(stream);
  SplitProblem p;
  p.tables = tables;
  p.arrays = AttentionArrays(operands, tables.kv_heads, table.format.head_dim);
  p.query_blocks = (p.arrays.group + kQueries - 1) / kQueries;
  p.queries = std::min(p.arrays.group, kQueries);
  p.arrivals = cuda.arrivals();
  p.partials = static_cast<float*>(scratch);
  if (p.arrays.head_dim <= 64) {
    Launch<64>(cuda, p);
  } else if (p.arrays.head_dim <= 128) {
    Launch<128>(cuda, p);
  } else {
    Launch<256>(cuda, p);
  }
}

}  // namespace litecache::ops::cuda
