// Attention of a prompt chunk: FlashAttention-2 on mma.sync over paged rows.
//
// The query heads of a group are rows of one tile (row i of a sequence's KV head is token i /
// group, head i % group), so that a tile of KV rows is read once for the group and the causal edge
// of a tile is as narrow as possible. Tiles of the last tokens, which attend the most rows, go
// first. With a window, rows are in a ring of slots, and tiles of rows that no query attends are
// skipped. Where heads keep different blocks of rows, a tile has the queries of one head: those of
// four heads that each keep a tenth would attend a third of the blocks.
#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_arrays.cuh"
#include "ops/common/online_softmax.cuh"
#include "ops/common/shared_memory.cuh"

namespace litecache::ops::cuda {
namespace {

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
  static constexpr int kQueryBytes = kHeadDim * 2;
  static constexpr int kRowBytes = kHeadDim * 2 * 2;
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
  float out[kProducts][kHeadDim / 8][4];
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

// kMasked: some queries do not attend all rows of the tile.
template <int kHeadDim, bool kMasked, bool kWindow>
__device__ __forceinline__ void AttendTile(uint32_t queries, uint32_t stage,
                                           const TileLimits<kWindow>& limits,
                                           TiledState<kHeadDim>* state) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kProducts = Shape::kProducts;
  const int lane = threadIdx.x % 32;
  float scores[kProducts][kKvRows / 8][4] = {};
  {
    const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int s = 0; s < kHeadDim / 16; ++s) {
      uint32_t a[kProducts][4];
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        LoadMatrices(a[m], queries + SwizzledOffset(m * 16 + lane % 16, 2 * s + lane / 16,
                                                    Shape::kQueryBytes));
      }
#pragma unroll
      for (int n = 0; n < kKvRows / 16; ++n) {
        uint32_t k[4];
        LoadMatrices(k,
                     stage + SwizzledOffset(n * 16 + row, 2 * s + lane / 8 % 2, Shape::kRowBytes));
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          MultiplyAdd(scores[m][2 * n], a[m], k[0], k[1]);
          MultiplyAdd(scores[m][2 * n + 1], a[m], k[2], k[3]);
        }
      }
    }
  }
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
      for (int n = 0; n < kHeadDim / 8; ++n) {
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
    for (int n = 0; n < kHeadDim / 16; ++n) {
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
// null.
template <int kHeadDim>
__device__ void CopyTile(const RowList& list, const std::byte* first, const TableAccess* ring,
                         int32_t begin, int32_t end, int head_dim, uint32_t stage) {
  constexpr int kChunks = kHeadDim / 8;  // of K, and of V
  constexpr int kStep = kThreads / (2 * kChunks);
  const int c = threadIdx.x % (2 * kChunks), part = c / kChunks, chunk = c % kChunks;
  const int chunks = head_dim / 8;
  if (chunk >= chunks) return;
  const int64_t offset = (part * chunks + chunk) * 16;
#pragma unroll
  for (int i = 0; i < kKvRows / kStep; ++i) {
    const int r = static_cast<int>(threadIdx.x) / (2 * kChunks) + i * kStep;
    // Missing rows become zeros, since anything multiplied by zero must be a finite number.
    const int32_t token = begin + r < end ? begin + r : end - 1;
    const std::byte* row = first != nullptr  ? first + (token - begin) * list.row_bytes
                           : ring != nullptr ? list.Row(ring->RowOf(token))
                                             : list.Row(token);
    CopyChunk(stage + SwizzledOffset(r, c, TiledShape<kHeadDim>::kRowBytes), row + offset,
              begin + r < end);
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
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state->out[m][n][i] = 0;
    }
  }
}

// Writes the outputs of a warp's queries, from query `warp_first` of the head's `queries` on.
template <int kHeadDim>
__device__ __forceinline__ void StoreOutputs(const AttentionArrays& a, int32_t first_row,
                                             int32_t head, int32_t warp_first, int32_t queries,
                                             const TiledState<kHeadDim>& state) {
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
      for (int n = 0; n < kHeadDim / 8; ++n) {
        if (n * 8 >= a.head_dim) continue;
        a.Store(first_row + token, column + n * 8, state.out[m][n][2 * h] * inverse,
                state.out[m][n][2 * h + 1] * inverse);
      }
    }
  }
}

// Writes the blocks that any of a query head's tokens [first, last] keeps. Called by the whole
// block.
__device__ inline void UniteKept(const DeviceKeptBlocks& kept, int32_t q_head, int32_t first,
                                 int32_t last, uint32_t* words) {
  const int32_t begin = first / kept.query_rows, end = last / kept.query_rows;
  for (int32_t w = threadIdx.x; w < kept.words; w += kThreads) {
    uint32_t word = 0;
    for (int32_t block = begin; block <= end; ++block) word |= kept.Of(q_head, block)[w];
    words[w] = word;
  }
  __syncthreads();
}

template <int kHeadDim, Rows kRows>
__global__ void __launch_bounds__(kThreads, kHeadDim <= 128 ? 2 : 1)
    TiledKernel(const __grid_constant__ TiledProblem p) {
  using Shape = TiledShape<kHeadDim>;
  constexpr bool kWindow = kRows == Rows::kWindow, kKept = kRows == Rows::kKept;
  const AttentionArrays& a = p.arrays;
  constexpr int kProducts = Shape::kProducts;
  extern __shared__ __align__(128) std::byte shared[];
  if (static_cast<int32_t>(blockIdx.z) >= *p.step.count) return;
  const StepSequence& sequence = p.step.sequences[blockIdx.z];
  const auto head = static_cast<int32_t>(blockIdx.x);
  const int32_t tile_of_queries = static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
  const int32_t first = tile_of_queries * Shape::kQueries;
  const int32_t queries = sequence.rows * a.group;
  if (first >= queries) return;
  const int32_t list_index = p.access.table.list_of_head[kKept ? head / p.group : head];
  if (list_index < 0) return;
  const RowList list = p.access.List(sequence, list_index);
  const bool whole_tiles = !kWindow && list.page_rows % kKvRows == 0;
  const int32_t past = sequence.past, first_row = sequence.first_row;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto query_tile = shared;
  const uint32_t stages = SharedAddress(shared + Shape::kQueries * Shape::kQueryBytes);

  if (a.head_dim < kHeadDim) {  // columns that no copy writes must be finite numbers
    for (int i = threadIdx.x * 16; i < Shape::kBytes; i += kThreads * 16) {
      *reinterpret_cast<int4*>(shared + i) = int4{0, 0, 0, 0};
    }
    __syncthreads();
  }
  // Query i attends rows below past + i / group + 1.
  const int32_t last = min(first + Shape::kQueries, queries) - 1;
  const int32_t end = past + last / a.group + 1;
  const int32_t tiles = (end + kKvRows - 1) / kKvRows;
  // The tiles of rows that are attended: those of the sink, and from the first query's window on.
  const int32_t sink = kWindow ? p.access.table.sink : 0;
  const int32_t sink_tiles = (sink + kKvRows - 1) / kKvRows;
  const int32_t window_tile =
      kWindow ? max(sink_tiles, (past + first / a.group + 1 - p.window) / kKvRows) : 0;
  __shared__ uint32_t any_keeps[kKept ? kMostWords : 1];
  if constexpr (kKept) UniteKept(p.kept, head, first, last, any_keeps);
  const auto next = [&](int32_t tile) {
    ++tile;
    if constexpr (kKept) {
      constexpr int kTiles = KeptBlocks::kRows / kKvRows;  // of a block
      while (tile < tiles && (any_keeps[tile / kTiles / 32] >> tile / kTiles % 32 & 1) == 0) ++tile;
    }
    return kWindow && tile >= sink_tiles ? max(tile, window_tile) : tile;
  };
  const int32_t first_tile = next(-1);
  // A tile's page address is loaded one tile before its rows.
  const auto address = [&](int32_t tile) -> const std::byte* {
    return whole_tiles && tile < tiles ? list.Row(tile * kKvRows) : nullptr;
  };
  const std::byte* ahead = address(first_tile);
  const auto copy = [&](int32_t tile, int32_t stage) {
    CopyTile<kHeadDim>(list, ahead, kWindow ? &p.access : nullptr, tile * kKvRows, end, a.head_dim,
                       stages + stage % Shape::kStages * Shape::kStageBytes);
    CommitCopies();
    ahead = address(next(tile));
  };
  copy(first_tile, 0);

  BringQueries<kHeadDim>(a, first_row, head, first, queries, query_tile);

  TiledState<kHeadDim> state;
  Clear<kHeadDim>(&state);
  const int32_t warp_first = first + warp * Shape::kWarpQueries;
  // For the warp: rows that all its queries attend, and rows that any of them attends.
  const int32_t all_see = past + warp_first / a.group + 1;
  const int32_t any_sees = past + min(warp_first + Shape::kWarpQueries - 1, last) / a.group + 1;
  // With a window: where that of the warp's last query begins.
  const int32_t all_from = kWindow ? any_sees - p.window : 0;
  const bool idle = warp_first >= queries;
  const uint32_t* keeps[kProducts][2] = {};  // the lane's query rows' bits
  if constexpr (kKept) {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t query = min(warp_first + m * 16 + h * 8 + lane / 4, last);
        keeps[m][h] = p.kept.Of(head, query / p.kept.query_rows);
      }
    }
  }
  const uint32_t own_queries =
      SharedAddress(query_tile) + warp * Shape::kWarpQueries * Shape::kQueryBytes;
  int32_t count = 0;
  for (int32_t tile = first_tile; tile < tiles; ++count) {
    WaitForCopies<0>();
    __syncthreads();  // this tile has arrived, and the previous one has been read
    const int32_t after = next(tile);
    if (Shape::kStages > 1 && after < tiles) copy(after, count + 1);
    const int32_t begin = tile * kKvRows;
    const uint32_t stage = stages + count % Shape::kStages * Shape::kStageBytes;
    if (!idle && begin < any_sees) {
      TileLimits<kWindow> limits;
      const int32_t block = begin / KeptBlocks::kRows;
      const auto kept = [&](int m, int h) {
        return !kKept || (keeps[m][h][block / 32] >> block % 32 & 1) != 0;
      };
      bool whole = begin + kKvRows <= all_see && begin >= all_from;
      if constexpr (kKept) {
        bool all_keep = true;
#pragma unroll
        for (int m = 0; m < kProducts; ++m) all_keep = all_keep && kept(m, 0) && kept(m, 1);
        whole = __all_sync(kAll, all_keep) && whole;
      }
      if (whole) {
        AttendTile<kHeadDim, false, kWindow>(own_queries, stage, limits, &state);
      } else {
        limits.sink = sink - begin;
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int32_t query = warp_first + m * 16 + h * 8 + lane / 4;
            limits.below[m][h] = past + query / a.group + 1 - begin;
            limits.from[m][h] = limits.below[m][h] - p.window;
            if (!kept(m, h)) limits.below[m][h] = 0;
          }
        }
        AttendTile<kHeadDim, true, kWindow>(own_queries, stage, limits, &state);
      }
    }
    if (Shape::kStages == 1 && after < tiles) {
      __syncthreads();
      copy(after, count + 1);
    }
    tile = after;
  }
  StoreOutputs<kHeadDim>(a, first_row, head, warp_first, queries, state);
}

template <int kHeadDim, Rows kRows>
void Launch(CudaStream& stream, const TiledProblem& problem) {
  using Shape = TiledShape<kHeadDim>;
  const size_t most = AllowSharedMemory(TiledKernel<kHeadDim, kRows>);
  LC_CHECK(Shape::kBytes <= most, "a GPU with too little shared memory");
  const int64_t queries = int64_t{problem.step.max_rows} * problem.arrays.group;
  const dim3 grid(static_cast<unsigned>(problem.arrays.q_heads / problem.arrays.group),
                  static_cast<unsigned>((queries + Shape::kQueries - 1) / Shape::kQueries),
                  static_cast<unsigned>(problem.step.capacity));
  LC_CHECK(grid.y <= 65535 && grid.z <= 65535, "too many queries in one step");
  TiledKernel<kHeadDim, kRows><<<grid, kThreads, Shape::kBytes, stream.handle()>>>(problem);
  LC_CUDA_LAUNCHED();
}

template <Rows kRows>
void Attend(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
            int32_t window, const AttentionOperands& operands) {
  TiledProblem p;
  p.step = step;
  p.access = TableAccess(table);
  p.window = window;
  p.kept = operands.kept;
  LC_CHECK(p.kept.words <= kMostWords, "a context too long for kept blocks");
  p.arrays = AttentionArrays(operands, kv_heads, table.format.head_dim);
  p.group = p.arrays.group;
  if (kRows == Rows::kKept) p.arrays.group = 1;
  CudaStream& cuda = AsCuda(stream);
  if (p.arrays.head_dim <= 64) {
    Launch<64, kRows>(cuda, p);
  } else if (p.arrays.head_dim <= 128) {
    Launch<128, kRows>(cuda, p);
  } else {
    Launch<256, kRows>(cuda, p);
  }
}

}  // namespace

void TiledAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const AttentionOperands& operands) {
  if (operands.kept.bits != nullptr) {
    Attend<Rows::kKept>(stream, step, kv_heads, table, 0, operands);
  } else {
    Attend<Rows::kAll>(stream, step, kv_heads, table, 0, operands);
  }
}

void TiledWindowAttention(Stream& stream, const StepView& step, int64_t kv_heads,
                          const RowTable& table, int32_t window,
                          const AttentionOperands& operands) {
  Attend<Rows::kWindow>(stream, step, kv_heads, table, window, operands);
}

}  // namespace litecache::ops::cuda
