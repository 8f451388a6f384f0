// Decode attention: one query token a sequence over any number of rows.
//
// The rows of all (sequence, KV head, query heads) pairs are cut into tiles of 16 and the tiles
// into equal runs, one a block, so that every SM reads as much as every other whatever the batch. A
// run may span pairs, and a pair runs; where several blocks share a pair each leaves a partial
// result (Flash-Decoding), which a second kernel merges.
//
// Within a block each warp attends tiles of its own: it copies them into its own part of shared
// memory, several under way, and waits for no other warp until the pair ends. A group's query heads
// are the rows of a matrix product, so that a row is read once for all of them.
#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/online_softmax.cuh"
#include "ops/cuda/shared_memory.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTileRows = 16;
constexpr unsigned kAll = 0xffffffffu;

struct SplitProblem {
  AttendedTables tables;
  const float* q = nullptr;
  int64_t q_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool out_bf16 = false;
  float scale = 0;
  int32_t head_dim = 0, group = 0;
  int32_t query_blocks = 0;  // of up to kSplitQueries query heads, a group
  int32_t queries = 0;       // rows of a partial result: min(group, kSplitQueries)
  uint32_t* ends = nullptr;  // scratch: [pairs + 1] tiles before each pair
  float* partials = nullptr;

  __device__ int32_t Pairs() const { return *tables.step.count * tables.kv_heads * query_blocks; }
  // Of query row `r` of a pair's: its row of q and of out, and its first column.
  __device__ void Place(int32_t pair, int32_t r, int32_t* row, int32_t* column) const {
    const int32_t sequence = pair / (tables.kv_heads * query_blocks);
    const int32_t rest = pair - sequence * tables.kv_heads * query_blocks;
    const int32_t head = rest / query_blocks, block = rest - head * query_blocks;
    *row = tables.step.sequences[sequence].first_row;
    *column = (head * group + block * static_cast<int32_t>(kSplitQueries) + r) * head_dim;
  }
  __device__ int32_t QueriesOf(int32_t pair) const {
    const int32_t left = group - pair % query_blocks * static_cast<int32_t>(kSplitQueries);
    return left < queries ? left : queries;
  }
  // Partial results: maximum [queries], sum [queries], out [queries][head_dim], the latter two
  // relative to the maximum. As blocks go up so do pairs: the sum of both names one.
  __device__ float* Partial(int32_t pair, int32_t block) const {
    return partials + static_cast<int64_t>(pair + block) * queries * (head_dim + 2);
  }
};

// Tiles of a block. Whole rounds of the warps.
__device__ uint32_t TilesOfBlock(uint32_t tiles, uint32_t blocks) {
  const uint32_t even = (tiles + blocks - 1) / blocks;
  const uint32_t rounds = (even + kWarps - 1) / kWarps;
  return (rounds > 0 ? rounds : 1) * kWarps;
}

template <int kHeadDim>
struct SplitShape {
  static constexpr int kStages = kHeadDim == 64 ? 4 : kHeadDim == 128 ? 3 : 2;
  static constexpr int kRowBytes = kHeadDim * 2 * 2;
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;
  // A warp's result lies where its tiles were: maximum and sum [16], out [16][kHeadDim] f32.
  static_assert(kWarpBytes >= kTileRows * (kHeadDim + 2) * 4);
};

// Writes ends[0 .. pairs]: the tiles of the pairs before. Whole block.
__device__ void CountTiles(const SplitProblem& p, int32_t pairs, uint32_t* ends) {
  __shared__ uint32_t warp_tiles[kWarps];
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t before = 0;
  for (int32_t begin = 0; begin < pairs; begin += kThreads) {
    const int32_t pair = begin + static_cast<int32_t>(threadIdx.x);
    uint32_t tiles = 0;
    if (pair < pairs) {
      const int32_t index = pair / (p.tables.kv_heads * p.query_blocks);
      const int32_t head = pair / p.query_blocks % p.tables.kv_heads;
      const StepSequence& sequence = p.tables.step.sequences[index];
      if (sequence.rows > 0) {
        const int32_t rows = p.tables.Of(index, head, sequence.past + 1).total;
        tiles = static_cast<uint32_t>(rows + kTileRows - 1) / kTileRows;
      }
    }
    uint32_t sum = tiles;  // of this lane and those before
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warp_tiles[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += warp_tiles[w];
    if (pair < pairs) ends[pair + 1] = before + sum;
    for (int w = 0; w < kWarps; ++w) before += warp_tiles[w];
    __syncthreads();
  }
  if (threadIdx.x == 0) ends[0] = 0;
  __syncthreads();
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

// The tile's rows into a stage; returns which of them are attended. Whole warp.
template <int kHeadDim>
__device__ unsigned CopyTile(const AttendedRows& rows, uint32_t tile, int head_dim,
                             uint32_t stage) {
  constexpr int kChunks = kHeadDim / 8;  // of K, and of V
  const int lane = threadIdx.x % 32;
  const int32_t index = static_cast<int32_t>(tile) * kTileRows + lane % kTileRows;
  const std::byte* row = index < rows.total ? rows.Row(index) : nullptr;
  const unsigned attended = __ballot_sync(kAll, row != nullptr) & 0xffffu;
  // Rows that are not attended become zeros: nothing but numbers may be multiplied by zero.
  const std::byte* any = row != nullptr ? row : rows.list.pages[0];
  const int chunks = head_dim / 8;
#pragma unroll
  for (int i = 0; i < kTileRows * 2 * kChunks / 32; ++i) {
    const int at = i * 32 + lane;
    const int r = at / (2 * kChunks), c = at % (2 * kChunks);
    const auto* source = reinterpret_cast<const std::byte*>(
        __shfl_sync(kAll, reinterpret_cast<unsigned long long>(any), r));
    const int part = c / kChunks, chunk = c % kChunks;
    if (chunk < chunks) {
      CopyChunk(stage + SwizzledOffset(r, c, SplitShape<kHeadDim>::kRowBytes),
                source + (part * chunks + chunk) * 16, (attended >> r & 1) != 0);
    }
  }
  return attended;
}

// Two neighbouring values of a query row.
__device__ uint32_t LoadQuery(const SplitProblem& p, int32_t pair, int r, int queries, int c) {
  if (r >= queries || c >= p.head_dim) return 0;
  int32_t row, column;
  p.Place(pair, r, &row, &column);
  const auto value = *reinterpret_cast<const float2*>(p.q + row * p.q_stride + column + c);
  return PackBf16(value.x * p.scale, value.y * p.scale);
}

__device__ void StoreOut(const SplitProblem& p, int32_t row, int32_t column, float value) {
  const int64_t at = row * p.out_stride + column;
  if (p.out_bf16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(p.out)[at] = value;
  }
}

// Merges the warps' results and writes them: the whole pair's to out, a part of it to a partial.
template <int kHeadDim>
__device__ void FinishPair(const SplitProblem& p, int32_t pair, bool whole, std::byte* shared,
                           const WarpState<kHeadDim>& state) {
  using Shape = SplitShape<kHeadDim>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int queries = p.QueriesOf(pair);
  const auto result = [&](int w) {
    return reinterpret_cast<float*>(shared + w * Shape::kWarpBytes);
  };
  float* mine = result(warp);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    const float sum = QuadSum(state.sum[h]);
    if (lane % 4 == 0) {
      mine[r] = state.maximum[h];
      mine[kTileRows + r] = sum;
    }
    if (r < queries) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        float* to = mine + 2 * kTileRows + r * kHeadDim + n * 8 + lane % 4 * 2;
        to[0] = state.out[n][2 * h];
        to[1] = state.out[n][2 * h + 1];
      }
    }
  }
  __syncthreads();
  float* partial = p.Partial(pair, static_cast<int32_t>(blockIdx.x));
  for (int i = threadIdx.x; i < queries * p.head_dim; i += kThreads) {
    const int r = i / p.head_dim, c = i - r * p.head_dim;
    float highest = result(0)[r];
    for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, result(w)[r]);
    float sum = 0, value = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = Exp2(result(w)[r] - highest);
      sum += factor * result(w)[kTileRows + r];
      value += factor * result(w)[2 * kTileRows + r * kHeadDim + c];
    }
    if (whole) {
      int32_t row, column;
      p.Place(pair, r, &row, &column);
      StoreOut(p, row, column + c, value / sum);
    } else {
      if (c == 0) {
        partial[r] = highest;
        partial[p.queries + r] = sum;
      }
      partial[2 * p.queries + r * p.head_dim + c] = value;
    }
  }
  __syncthreads();
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) SplitKernel(SplitProblem p) {
  using Shape = SplitShape<kHeadDim>;
  extern __shared__ __align__(128) std::byte shared[];
  auto* ends = reinterpret_cast<uint32_t*>(shared + Shape::kBytes);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t pairs = p.Pairs();
  CountTiles(p, pairs, ends);
  if (blockIdx.x == 0) {
    for (int32_t i = threadIdx.x; i <= pairs; i += kThreads) p.ends[i] = ends[i];
  }
  const uint32_t all = ends[pairs];
  const uint32_t length = TilesOfBlock(all, gridDim.x);
  uint32_t begin = blockIdx.x * length;
  const uint32_t end = begin + length < all ? begin + length : all;
  if (begin >= end) return;

  // The last pair that begins at or before the block's first tile: pairs without tiles are passed.
  int32_t pair = 0;
  for (int32_t after = pairs; after - pair > 1;) {
    const int32_t middle = (pair + after) / 2;
    (ends[middle] <= begin ? pair : after) = middle;
  }
  std::byte* own = shared + warp * Shape::kWarpBytes;
  const uint32_t own_address = SharedAddress(own);
  for (; begin < end; ++pair) {
    const uint32_t pair_begin = ends[pair], pair_end = ends[pair + 1];
    if (pair_begin == pair_end) continue;
    const uint32_t stop = pair_end < end ? pair_end : end;
    const int32_t index = pair / (p.tables.kv_heads * p.query_blocks);
    const int32_t head = pair / p.query_blocks % p.tables.kv_heads;
    const AttendedRows rows = p.tables.Of(index, head, p.tables.step.sequences[index].past + 1);

    if (p.head_dim < kHeadDim) {  // what no copy writes to has to be numbers
      for (int i = lane * 16; i < Shape::kWarpBytes; i += 32 * 16) {
        *reinterpret_cast<int4*>(own + i) = int4{0, 0, 0, 0};
      }
      __syncwarp();
    }
    // Tiles first, first + kWarps ... of this warp; tile i of them lies in stage i % kStages.
    const uint32_t first = begin - pair_begin + warp, last = stop - pair_begin;
    unsigned attended[Shape::kStages] = {};
    const auto copy = [&](uint32_t tile, int stage) {
      unsigned some = 0;
      if (tile < last) {
        some = CopyTile<kHeadDim>(rows, tile, p.head_dim, own_address + stage * Shape::kStageBytes);
      }
      CommitCopies();
      return some;
    };
#pragma unroll
    for (int s = 0; s < Shape::kStages - 1; ++s) attended[s] = copy(first + s * kWarps, s);

    const int queries = p.QueriesOf(pair);
    uint32_t q[kHeadDim / 16][4];
#pragma unroll
    for (int s = 0; s < kHeadDim / 16; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[s][i] =
            LoadQuery(p, pair, lane / 4 + i % 2 * 8, queries, s * 16 + lane % 4 * 2 + i / 2 * 8);
      }
    }
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
    for (uint32_t tile = first; tile < last;) {
#pragma unroll
      for (int s = 0; s < Shape::kStages; ++s, tile += kWarps) {
        if (tile >= last) break;
        WaitForCopies<Shape::kStages - 2>();
        __syncwarp();  // the other lanes' copies; and all have read the stage that is written next
        constexpr int kAhead = Shape::kStages - 1;
        const int next = (s + kAhead) % Shape::kStages;
        attended[next] = copy(tile + kAhead * kWarps, next);
        if (attended[s] != 0) {
          AttendTile<kHeadDim>(own_address + s * Shape::kStageBytes, attended[s], q, &state);
        }
      }
    }
    WaitForCopies<0>();
    __syncwarp();
    FinishPair<kHeadDim>(p, pair, begin == pair_begin && stop == pair_end, shared, state);
    begin = stop;
  }
}

// Merges the partial results of one query head: a block a query row of a pair. The warps take
// partials in turn.
__global__ void __launch_bounds__(kThreads) MergeKernel(SplitProblem p, uint32_t split_blocks) {
  constexpr int kMaxHeadDim = 256;
  __shared__ float sums[kWarps];
  __shared__ float values[kWarps][kMaxHeadDim];
  const auto pair = static_cast<int32_t>(blockIdx.x) / p.queries;
  const int r = static_cast<int32_t>(blockIdx.x) % p.queries;
  const int32_t pairs = p.Pairs();
  if (pair >= pairs || r >= p.QueriesOf(pair)) return;
  const uint32_t begin = p.ends[pair], end = p.ends[pair + 1];
  if (begin == end) return;
  const uint32_t length = TilesOfBlock(p.ends[pairs], split_blocks);
  const uint32_t first = begin / length, last = (end - 1) / length;
  if (first == last) return;  // one block had all of it
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float highest = -kLargestScore;
  for (uint32_t b = first + lane; b <= last; b += 32) {
    highest = fmaxf(highest, p.Partial(pair, static_cast<int32_t>(b))[r]);
  }
  for (int step = 16; step > 0; step /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, step));
  }
  float sum = 0, value[kMaxHeadDim / 32] = {};
#pragma unroll 4
  for (uint32_t b = first + warp; b <= last; b += kWarps) {
    const float* partial = p.Partial(pair, static_cast<int32_t>(b));
    const float factor = Exp2(partial[r] - highest);
    sum += factor * partial[p.queries + r];
    const float* row = partial + 2 * p.queries + r * p.head_dim;
#pragma unroll
    for (int i = 0; i < kMaxHeadDim / 32; ++i) {
      const int c = i * 32 + lane;
      if (c < p.head_dim) value[i] += factor * row[c];
    }
  }
  if (lane == 0) sums[warp] = sum;
#pragma unroll
  for (int i = 0; i < kMaxHeadDim / 32; ++i) values[warp][i * 32 + lane] = value[i];
  __syncthreads();
  int32_t row, column;
  p.Place(pair, r, &row, &column);
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += sums[w];
  for (int c = threadIdx.x; c < p.head_dim; c += kThreads) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += values[w][c];
    StoreOut(p, row, column + c, total / sum);
  }
}

template <int kHeadDim>
void Launch(CudaStream& stream, const SplitProblem& problem, int64_t pairs) {
  const auto bytes = static_cast<size_t>(SplitShape<kHeadDim>::kBytes + (pairs + 1) * 4);
  static const size_t most = AllowSharedMemory(SplitKernel<kHeadDim>);
  LC_CHECK(bytes <= most, "too many sequences and heads for one attention");
  const int64_t blocks = std::min<int64_t>(2 * stream.sm_count(), kMaxSplitBlocks);
  SplitKernel<kHeadDim>
      <<<static_cast<unsigned>(blocks), kThreads, bytes, stream.handle()>>>(problem);
  LC_CUDA_LAUNCHED();
  MergeKernel<<<static_cast<unsigned>(pairs * problem.queries), kThreads, 0, stream.handle()>>>(
      problem, static_cast<uint32_t>(blocks));
  LC_CUDA_LAUNCHED();
}

}  // namespace

void SplitAttention(Stream& stream, const AttendedTables& tables, const AttentionOperands& operands,
                    void* scratch) {
  const RowTable& table =
      tables.hybrid && tables.tables.slots.lists > 0 ? tables.tables.slots : tables.tables.resident;
  SplitProblem p;
  p.tables = tables;
  p.q = operands.q.Row<const float>(0);
  p.q_stride = operands.q.stride;
  p.out = operands.out.data;
  p.out_stride = operands.out.stride;
  p.out_bf16 = operands.out.dtype == DType::kBF16;
  p.scale = operands.scale;
  p.head_dim = static_cast<int32_t>(table.format.head_dim);
  p.group = operands.q_heads / tables.kv_heads;
  p.query_blocks =
      (p.group + static_cast<int32_t>(kSplitQueries) - 1) / static_cast<int32_t>(kSplitQueries);
  p.queries = std::min(p.group, static_cast<int32_t>(kSplitQueries));
  const int64_t pairs = int64_t{tables.step.capacity} * tables.kv_heads * p.query_blocks;
  p.ends = static_cast<uint32_t*>(scratch);
  p.partials = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) +
                                        (static_cast<size_t>(pairs + 1) * 4 + 255) / 256 * 256);
  CudaStream& cuda = AsCuda(stream);
  if (p.head_dim <= 64) {
    Launch<64>(cuda, p, pairs);
  } else if (p.head_dim <= 128) {
    Launch<128>(cuda, p, pairs);
  } else {
    Launch<256>(cuda, p, pairs);
  }
}

}  // namespace litecache::ops::cuda
