#include "ops/common/overlap.cuh"
#include "ops/common/shared_words.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/vectors.cuh"
#include "ops/recurrence/gated_delta_chunks.cuh"

namespace litecache::ops::cuda {
namespace {

// A warp of four has 16 of a chunk's tokens in the products of keys with keys and queries, and one
// of the inverse's four diagonal blocks.
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kBlock = 16, kBlocks = kChunk / kBlock;
static_assert(kBlocks == kWarps);

// A row's logarithm of its decay is at least this (base 2): what remains of the state is nothing
// beside it, and sums over a chunk remain accurate.
constexpr float kLeastLogDecay = -60;

// Rows of transposed matrices are four words longer than they need be: a warp's stores are then in
// different banks.
constexpr int kPitch = kChunk + 4;

// Keys and queries as f16, of length 1, while they are multiplied.
struct UnitRows {
  alignas(16) std::byte keys[kChunk * kRowBytes];
  alignas(16) std::byte queries[kChunk * kRowBytes];
};

// Of a value head. Matrices are transposed where a column's next elements are read at once.
struct Matrices {
  alignas(16) float coefficients[kChunk][kPitch];  // A transposed
  union {
    alignas(16) float inverse[kChunk][kChunk];          // not the blocks above the diagonal's
    alignas(16) std::byte scores[kChunk * kChunk * 2];  // P as f16, before the inverse
  };
  alignas(16) float diagonal[kBlocks][kBlock][kBlock];  // the inverse's blocks, transposed
  alignas(16) float sums[kBlock][kChunk];
};

struct Tile {
  union {
    UnitRows unit;
    Matrices matrices;  // after that
  };
  float log_decays[kMostChunkGroup][kChunk];  // base 2, from the chunk's beginning
  float steps[kMostChunkGroup][kChunk];
};

// A chunk of a sequence.
struct Chunk {
  int32_t first_row, rows;
};

// Normalizes rows of keys or queries; by the whole block.
__device__ inline void CopyUnitRows(const DeltaArguments& a, const Chunk& chunk, int32_t column,
                                    std::byte* rows, std::byte* to, int64_t to_stride) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const uint32_t shared = SharedAddress(rows);
  constexpr int kLoads = 4;
  for (int32_t begin = static_cast<int32_t>(threadIdx.x) / 32; begin < kChunk;
       begin += kLoads * kWarps) {
    float4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t t = begin + i * kWarps;
      x[i] = {};
      if (t < chunk.rows) {
        x[i] =
            *reinterpret_cast<const float4*>(a.convolved[chunk.first_row + t] + column + 4 * lane);
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t t = begin + i * kWarps;
      const float squares =
          fmaf(x[i].x, x[i].x, fmaf(x[i].y, x[i].y, fmaf(x[i].z, x[i].z, x[i].w * x[i].w)));
      const float factor = UnitFactor(LaneSum(squares), 1.0f);
      const uint32_t low = PackF16(x[i].x * factor, x[i].y * factor);
      const uint32_t high = PackF16(x[i].z * factor, x[i].w * factor);
      StoreShared(shared + SwizzledOffset(t, lane / 2, kRowBytes) + lane % 2 * 8, low, high);
      if (t < chunk.rows) {
        *reinterpret_cast<uint2*>(to + t * to_stride + 8 * lane) = make_uint2(low, high);
      }
    }
  }
}

// The factors of a value head, the key head's i-th; by one warp, a lane has two tokens. Tokens
// after the chunk's last change nothing.
__device__ inline void MakeFactors(const DeltaArguments& a, const ChunkOperands& operands,
                                   const Chunk& chunk, int32_t head, int32_t i, Tile& tile) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float decays[2], steps[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int32_t t = 2 * lane + j;
    decays[j] = steps[j] = 0;
    if (t < chunk.rows) {
      constexpr float kLog2E = 1.44269504f;
      const int32_t row = chunk.first_row + t;
      const float exponent = DecayExponent(a.rate[row][head], a.log_rate[head], a.rate_bias[head]);
      decays[j] = fmaxf(-kLog2E * exponent, kLeastLogDecay);
      steps[j] = Sigmoid(a.step[row][head]);
    }
  }
  float sum = decays[0] + decays[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += before;
  }
  float before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (lane == 0) before = 0;
  const float all = __shfl_sync(0xffffffffu, sum, 31);
  const float logs[2] = {before + decays[0], sum};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int32_t t = 2 * lane + j;
    tile.log_decays[i][t] = logs[j];
    tile.steps[i][t] = steps[j];
    if (t < chunk.rows) {
      // Rounded sums may increase.
      const ChunkFactors factors = {steps[j], Exp2(logs[j]), Exp2(fminf(all - logs[j], 0.0f)), 0};
      *reinterpret_cast<ChunkFactors*>(operands.Factors(chunk.first_row + t, head)) = factors;
    }
  }
}

// Products of the warp's 16 tokens t with the tokens s up to them, as mma accumulators: of 8 tokens
// s each, element e has t = 16 warp + lane / 4 + 8 (e / 2), s = 8 i + 2 (lane % 4) + e % 2.
using Products = float[kChunk / 8][4];

__device__ inline void Multiply(const UnitRows& unit, Products& keys, Products& queries) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  const uint32_t shared_keys = SharedAddress(unit.keys);
  const uint32_t shared_queries = SharedAddress(unit.queries);
#pragma unroll
  for (int k = 0; k < kRowPieces; k += 2) {
    uint32_t own_keys[4], own_queries[4];
    LoadMatrices(own_keys, RowsFirst(shared_keys, kBlock * warp, k));
    LoadMatrices(own_queries, RowsFirst(shared_queries, kBlock * warp, k));
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (i > warp) continue;
      uint32_t b[4];
      LoadMatrices(b, ColumnsFirst(shared_keys, kBlock * i, k));
      MultiplyAddF16(keys[2 * i], own_keys, b[0], b[1]);
      MultiplyAddF16(keys[2 * i + 1], own_keys, b[2], b[3]);
      MultiplyAddF16(queries[2 * i], own_queries, b[0], b[1]);
      MultiplyAddF16(queries[2 * i + 1], own_queries, b[2], b[3]);
    }
  }
}

// A transposed, and P, of a value head: what the warp has products of, and zeros of P after them.
__device__ inline void WeighProducts(const Products& keys, const Products& queries,
                                     const float* log_decays, const float* steps, Matrices& m) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  const uint32_t scores = SharedAddress(m.scores);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t t = kBlock * warp + 8 * half + lane / 4;
    const float log_decay = log_decays[t], step = steps[t];
#pragma unroll
    for (int i = 0; i < kChunk / 8; ++i) {
      const int32_t s = 8 * i + lane % 4 * 2;
      float pair[2] = {};
      if (i / 2 <= warp) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          // Of later tokens the difference is positive, and unused.
          const float decay = Exp2(fminf(log_decay - log_decays[s + j], 0.0f));
          const int e = 2 * half + j;
          m.coefficients[s + j][t] = s + j < t ? step * keys[i][e] * decay : 0.0f;
          pair[j] = s + j <= t ? queries[i][e] * decay : 0.0f;
        }
      }
      StoreShared(scores + SwizzledOffset(t, i, kChunk * 2) + lane % 4 * 4,
                  PackF16(pair[0], pair[1]));
    }
  }
}

// Calls body(token, piece) for the pieces of eight values of a [kChunk][kChunk] matrix's rows.
template <typename Body>
__device__ inline void ForEachPiece(const Chunk& chunk, const Body& body) {
  constexpr int kPieces = kChunk / 8;
#pragma unroll
  for (int i = 0; i < kChunk * kPieces / kThreads; ++i) {
    const int32_t item = i * kThreads + static_cast<int32_t>(threadIdx.x);
    const int32_t t = item / kPieces, piece = item % kPieces;
    if (t < chunk.rows) body(t, piece);
  }
}

// Copies P to scratch memory, after the inverse's place.
__device__ inline void StoreScores(const ChunkOperands& operands, const Chunk& chunk, int32_t head,
                                   const Matrices& m) {
  ForEachPiece(chunk, [&](int32_t t, int32_t piece) {
    *reinterpret_cast<uint4*>(operands.Weights(chunk.first_row + t, head) + kChunk * 2 +
                              16 * piece) =
        *reinterpret_cast<const uint4*>(m.scores + SwizzledOffset(t, piece, kChunk * 2));
  });
}

// Forward substitution, of the warp's diagonal block: column lane % 16 of its inverse.
__device__ inline void InvertBlock(const Matrices& m, float (&x)[kBlock]) {
  const auto column = static_cast<int32_t>(threadIdx.x % kBlock);
  const auto first = kBlock * (static_cast<int32_t>(threadIdx.x) / 32);
#pragma unroll
  for (int i = 0; i < kBlock; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int k = 0; k + 1 < kBlock; ++k) {
#pragma unroll
    for (int i = (k + 1) / 4 * 4; i < kBlock; i += 4) {
      const float4 a = *reinterpret_cast<const float4*>(&m.coefficients[first + k][first + i]);
      if (i > k) x[i] = fmaf(-a.x, x[k], x[i]);
      if (i + 1 > k) x[i + 1] = fmaf(-a.y, x[k], x[i + 1]);
      if (i + 2 > k) x[i + 2] = fmaf(-a.z, x[k], x[i + 2]);
      if (i + 3 > k) x[i + 3] = fmaf(-a.w, x[k], x[i + 3]);
    }
  }
}

__device__ inline void StoreBlock(const float (&x)[kBlock], Matrices& m) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto block = static_cast<int32_t>(threadIdx.x) / 32;
  if (lane >= kBlock) return;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    m.diagonal[block][lane][i] = x[i];
    m.inverse[kBlock * block + i][kBlock * block + lane] = x[i];
  }
}

// sums += factor * (the 8 rows' elements `column` of a transposed matrix).
__device__ inline void AddColumn(float (&sums)[8], const float* column, float factor) {
  const float4 low = *reinterpret_cast<const float4*>(column);
  const float4 high = *reinterpret_cast<const float4*>(column + 4);
  const float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = fmaf(a[i], factor, sums[i]);
}

// The inverse's blocks below the diagonal, a row of blocks after the other: M_IJ = -M_II sum over K
// of A_IK M_KJ. A thread has a column and 8 rows. Its barriers also come after StoreBlock().
__device__ inline void InvertBelow(Matrices& m) {
  const auto column = static_cast<int32_t>(threadIdx.x % kChunk);
  const auto rows = static_cast<int32_t>(threadIdx.x) / kChunk * 8;
  for (int32_t block = 1; block < kBlocks; ++block) {
    __syncthreads();  // the inverse's rows before are complete, `sums` have been read
    const int32_t first = block * kBlock;
    const bool below = column < first;
    if (below) {
      float y[8] = {};
#pragma unroll 4
      for (int32_t k = column / kBlock * kBlock; k < first; ++k) {
        AddColumn(y, &m.coefficients[k][first + rows], m.inverse[k][column]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) m.sums[rows + i][column] = y[i];
    }
    __syncthreads();
    if (below) {
      float x[8] = {};
#pragma unroll
      for (int k = 0; k < kBlock; ++k) {
        AddColumn(x, &m.diagonal[block][k][rows], -m.sums[k][column]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) m.inverse[first + rows + i][column] = x[i];
    }
  }
}

__device__ inline void StoreInverse(const ChunkOperands& operands, const Chunk& chunk, int32_t head,
                                    const Matrices& m) {
  ForEachPiece(chunk, [&](int32_t t, int32_t piece) {
    uint4 packed = {};
    if (8 * piece / kBlock <= t / kBlock) {
      const auto* x = reinterpret_cast<const float4*>(&m.inverse[t][8 * piece]);
      packed = {PackF16(x[0].x, x[0].y), PackF16(x[0].z, x[0].w), PackF16(x[1].x, x[1].y),
                PackF16(x[1].z, x[1].w)};
    }
    *reinterpret_cast<uint4*>(operands.Weights(chunk.first_row + t, head) + 16 * piece) = packed;
  });
}

// One block per key head, chunk and sequence: the key head's products, and from them the operands
// of its value heads.
__global__ void __launch_bounds__(kThreads, 4) ChunkOperandsKernel(const DeltaArguments a) {
  __shared__ Tile tile;
  WaitForKernelBefore();
  if (static_cast<int32_t>(blockIdx.z) >= *a.states.step.count) return;
  const StepSequence& sequence = a.states.step.sequences[blockIdx.z];
  const auto begin = static_cast<int32_t>(blockIdx.y) * kChunk;
  if (sequence.rows < a.chunked_rows || begin >= sequence.rows) return;
  const Chunk chunk = {sequence.first_row + begin, min(kChunk, sequence.rows - begin)};
  const ChunkOperands operands(a);
  const auto key_head = static_cast<int32_t>(blockIdx.x);
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;

  CopyUnitRows(a, chunk, key_head * kChunkDim, tile.unit.queries,
               operands.Query(chunk.first_row, key_head), operands.row_bytes);
  CopyUnitRows(a, chunk, (a.key_heads + key_head) * kChunkDim, tile.unit.keys,
               operands.Key(chunk.first_row, key_head), operands.row_bytes);
  for (int32_t i = warp; i < a.group; i += kWarps) {
    MakeFactors(a, operands, chunk, ValueHead(a, key_head, i), i, tile);
  }
  LetNextKernelStart();
  __syncthreads();
  Matrices& matrices = tile.matrices;
  Products keys = {}, queries = {};
  Multiply(tile.unit, keys, queries);

  for (int32_t i = 0; i < a.group; ++i) {
    const int32_t head = ValueHead(a, key_head, i);
    __syncthreads();  // keys and queries, or the matrices of the head before, have been read
    WeighProducts(keys, queries, tile.log_decays[i], tile.steps[i], matrices);
    __syncthreads();
    StoreScores(operands, chunk, head, matrices);
    float x[kBlock];
    InvertBlock(matrices, x);
    __syncthreads();  // the scores have been read: the inverse takes their place
    StoreBlock(x, matrices);
    InvertBelow(matrices);
    __syncthreads();
    StoreInverse(operands, chunk, head, matrices);
  }
}

}  // namespace

void MakeChunkOperands(CudaStream& stream, const DeltaArguments& a) {
  const dim3 grid(static_cast<unsigned>(a.key_heads),
                  static_cast<unsigned>((a.states.step.max_rows + kChunk - 1) / kChunk),
                  static_cast<unsigned>(a.states.step.capacity));
  LaunchOverlapping(stream, ChunkOperandsKernel, grid, kThreads, 0, a);
}

}  // namespace litecache::ops::cuda
