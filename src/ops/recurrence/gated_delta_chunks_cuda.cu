#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/vectors.cuh"
#include "ops/recurrence/gated_delta_chunks.cuh"
#include "ops/recurrence/gated_delta_chunks_cuda.h"

namespace litecache::ops::cuda {
namespace {

// A block has 32 columns of a head's S: 128 blocks for the 32 heads of one sequence. Of its four
// warps two have the same 16 columns and half of the keys each. All products are transposed, with
// the warp's columns as the rows of their accumulators: so each's result is the next one's operand
// without leaving the registers, S too. Only products over all keys are sums of two warps.
constexpr int kColumns = 32, kThreads = 128, kWarps = kThreads / 32;
constexpr int kWarpColumns = 16, kWarpKeys = kChunkDim / 2;

// Values and states are scaled by it as operands: magnitudes up to 2^20 fit in f16, and they have
// its whole accuracy from 2^-10 on. (A larger value becomes the largest.)
constexpr float kValueScale = 0.0625f;

// Rows of values in shared memory, in floats: with 4 more than columns, those of the lanes of a
// warp are in different banks.
constexpr int kValuePitch = kColumns + 4;

// A chunk's operands in shared memory, in bytes. There are two, one being loaded.
constexpr uint32_t kKeys = 0, kQueries = kKeys + kChunk * kRowBytes,
                   kWeights = kQueries + kChunk * kRowBytes,
                   kValues = kWeights + kChunk * kRowBytes,
                   kFactors = kValues + kChunk * kValuePitch * 4,
                   kStageBytes = kFactors + kChunk * sizeof(ChunkFactors);
// Then what each warp gives to the other one with its columns.
constexpr int kTiles = kChunk / 8, kGiven = kTiles + kTiles / 2;
constexpr uint32_t kPartials = 2 * kStageBytes,
                   kSharedBytes = kPartials + kWarps * kGiven * 32 * sizeof(float4);

// Starts the copies of `count` tokens from `row` on, and of zeros for those that a chunk has more.
__device__ inline void LoadChunk(const DeltaArguments& a, const ChunkOperands& operands,
                                 uint32_t stage, int32_t row, int32_t count, int32_t head,
                                 int32_t column) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t key_head = KeyHead(a, head);
#pragma unroll
  for (int i = 0; i < kChunk * kRowPieces / kThreads; ++i) {
    const int32_t t = (i * kThreads + thread) / kRowPieces, piece = thread % kRowPieces;
    const bool present = t < count;
    const int32_t from = present ? row + t : row;
    const uint32_t to = stage + SwizzledOffset(t, piece, kRowBytes);
    CopyChunk(to + kKeys, operands.Key(from, key_head) + 16 * piece, present);
    CopyChunk(to + kQueries, operands.Query(from, key_head) + 16 * piece, present);
    CopyChunk(to + kWeights, operands.Weights(from, head) + 16 * piece, present);
  }
  constexpr int kPieces = kColumns / 4;
#pragma unroll
  for (int i = 0; i < kChunk * kPieces / kThreads; ++i) {
    const int32_t t = (i * kThreads + thread) / kPieces, piece = thread % kPieces;
    const bool present = t < count;
    CopyChunk(stage + kValues + static_cast<uint32_t>(t * kValuePitch + 4 * piece) * 4,
              a.convolved[present ? row + t : row] + column + 4 * piece, present);
  }
  if (thread < kChunk) {
    const bool present = thread < count;
    CopyChunk(stage + kFactors + static_cast<uint32_t>(thread * sizeof(ChunkFactors)),
              operands.Factors(present ? row + thread : row, head), present);
  }
  CommitCopies();
}

// Accumulators of 16 columns and 8 tokens or keys: element e has column lane / 4 + 8 (e / 2), and
// token or key 2 (lane % 4) + e % 2. Those of 16 tokens or keys as an operand:
__device__ inline void AsOperand(const float (&low)[4], const float (&high)[4],
                                 uint32_t (&operand)[4]) {
  operand[0] = PackF16(low[0], low[1]);
  operand[1] = PackF16(low[2], low[3]);
  operand[2] = PackF16(high[0], high[1]);
  operand[3] = PackF16(high[2], high[3]);
}

// sums += operand * (16 rows in shared memory, from `row` and piece `piece` on, transposed).
__device__ inline void MultiplyRows(float (&low)[4], float (&high)[4], const uint32_t (&operand)[4],
                                    uint32_t shared, int row, int piece) {
  uint32_t b[4];
  LoadMatrices(b, ColumnsFirst(shared, row, piece));
  MultiplyAddF16(low, operand, b[0], b[1]);
  MultiplyAddF16(high, operand, b[2], b[3]);
}

__device__ inline float4 AsFloat4(const float (&x)[4]) { return {x[0], x[1], x[2], x[3]}; }
__device__ inline void Add(float (&x)[4], const float4& y) {
  x[0] += y.x;
  x[1] += y.y;
  x[2] += y.z;
  x[3] += y.w;
}

// Accumulators of a warp's columns: with the tokens of a chunk, with the tokens whose outputs are
// its own, and S: tile i has the keys 8 i + [0, 8) of the warp's half.
using ChunkTiles = float[kTiles][4];
using OwnTiles = float[kTiles / 2][4];
using StateTiles = float[kWarpKeys / 8][4];

// The first of the 16 tokens of the warp's own tiles i and i + 1, i = 0 or 2, in tiles: half 0 has
// the first and the last 16 of a chunk, half 1 the rest. That is as many products with the
// triangular P.
__device__ inline int32_t OwnTile(int32_t half, int i) {
  return half == 0 ? (i == 0 ? 0 : kTiles - 2) : i + 2;
}

__device__ inline void LoadState(const float* state, bool fresh, StateTiles& s) {
#pragma unroll
  for (int i = 0; i < kWarpKeys / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[i][e] = fresh ? 0.0f : state[(8 * i + e % 2) * kChunkDim + e / 2 * 8] * kValueScale;
    }
  }
}

__device__ inline void StoreState(const StateTiles& s, float* state) {
#pragma unroll
  for (int i = 0; i < kWarpKeys / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      state[(8 * i + e % 2) * kChunkDim + e / 2 * 8] = s[i][e] / kValueScale;
    }
  }
}

// key_sums += K S, query_sums += Q S: the part of the warp's keys.
__device__ inline void MultiplyState(const StateTiles& s, uint32_t stage, int32_t half,
                                     ChunkTiles& key_sums, ChunkTiles& query_sums) {
  uint32_t operand[kWarpKeys / 16][4];
#pragma unroll
  for (int k = 0; k < kWarpKeys / 16; ++k) AsOperand(s[2 * k], s[2 * k + 1], operand[k]);
#pragma unroll
  for (int k = 0; k < kWarpKeys / 16; ++k) {
#pragma unroll
    for (int i = 0; i < kTiles; i += 2) {
      MultiplyRows(key_sums[i], key_sums[i + 1], operand[k], stage + kKeys, 8 * i,
                   half * kWarpKeys / 8 + 2 * k);
    }
  }
#pragma unroll
  for (int k = 0; k < kWarpKeys / 16; ++k) {
#pragma unroll
    for (int i = 0; i < kTiles; i += 2) {
      MultiplyRows(query_sums[i], query_sums[i + 1], operand[k], stage + kQueries, 8 * i,
                   half * kWarpKeys / 8 + 2 * k);
    }
  }
}

// Adds up what the two warps with the same columns have: all of K S for both, and of Q S each one's
// own tokens. given, taken: what the warp and the other one write, [kGiven][32 lanes]. Called by
// the whole block.
__device__ inline void AddOtherKeys(float4* given, const float4* taken, int32_t half,
                                    ChunkTiles& key_sums, const ChunkTiles& query_sums,
                                    OwnTiles& own) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) given[32 * i] = AsFloat4(key_sums[i]);
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i) {
    const int outer = i < 2 ? i : i + kTiles / 2, inner = i + 2;
    float other[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      own[i][e] = half == 0 ? query_sums[outer][e] : query_sums[inner][e];
      other[e] = half == 0 ? query_sums[inner][e] : query_sums[outer][e];
    }
    given[32 * (kTiles + i)] = AsFloat4(other);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) Add(key_sums[i], taken[32 * i]);
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i) Add(own[i], taken[32 * (kTiles + i)]);
}

// corrections += D, the product of (I + A)^-1 and R. key_sums: K S, becomes R.
__device__ inline void Correct(const float* values, const ChunkFactors* factors, uint32_t stage,
                               ChunkTiles& key_sums, ChunkTiles& corrections) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  uint32_t missing[kTiles / 2][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t t = 8 * i + lane % 4 * 2 + e % 2;
      const float v = values[t * kValuePitch + e / 2 * 8] * kValueScale;
      key_sums[i][e] = factors[t].step * fmaf(-factors[t].since, key_sums[i][e], v);
    }
  }
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    AsOperand(key_sums[2 * k], key_sums[2 * k + 1], missing[k]);
  }
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
#pragma unroll
    for (int i = 2 * k; i < kTiles; i += 2) {
      MultiplyRows(corrections[i], corrections[i + 1], missing[k], stage + kWeights, 8 * i, 2 * k);
    }
  }
}

// The outputs of the warp's own tokens: of Q S (own) and P D. Those of the chunk's `count` tokens
// are written, scaled: token t's to row `row` + t of `convolved`, from `column` on.
__device__ inline void MakeOutputs(const DeltaArguments& a, const ChunkTiles& corrections,
                                   const ChunkFactors* factors, uint32_t stage, int32_t half,
                                   int32_t row, int32_t count, int32_t column, OwnTiles& own) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  uint32_t operand[kTiles / 2][4];
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    AsOperand(corrections[2 * k], corrections[2 * k + 1], operand[k]);
  }
#pragma unroll
  for (int i = 0; i < kTiles / 2; i += 2) {
    const int32_t tile = OwnTile(half, i);
    const int32_t t = 8 * tile + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      own[i][e] *= factors[t + e % 2].since;
      own[i + 1][e] *= factors[t + 8 + e % 2].since;
    }
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) {
      if (2 * k > tile) continue;
      MultiplyRows(own[i], own[i + 1], operand[k], stage + kWeights, 8 * tile, kTiles + 2 * k);
    }
    const float scale = a.query_scale / kValueScale;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int32_t token = t + e / 4 * 8 + e % 2;
      if (token >= count) continue;
      a.convolved[row + token][column + e % 4 / 2 * 8] = own[i + e / 4][e % 4] * scale;
    }
  }
}

// S after the chunk's `count` tokens, the warp's keys. corrections: D; its tokens are decayed.
__device__ inline void UpdateState(const ChunkFactors* factors, uint32_t stage, int32_t half,
                                   int32_t count, ChunkTiles& corrections, StateTiles& s) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const float decay = factors[count - 1].since;
#pragma unroll
  for (auto& tile : s) {
#pragma unroll
    for (float& x : tile) x *= decay;
  }
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int32_t t = 8 * (2 * k + e / 4) + lane % 4 * 2 + e % 2;
      corrections[2 * k + e / 4][e % 4] *= factors[t].until;
    }
    uint32_t operand[4];
    AsOperand(corrections[2 * k], corrections[2 * k + 1], operand);
#pragma unroll
    for (int i = 0; i < kWarpKeys / 8; i += 2) {
      uint32_t b[4];
      LoadTransposed(b, RowsFirst(stage + kKeys, 16 * k, half * kWarpKeys / 8 + i));
      MultiplyAddF16(s[i], operand, b[0], b[1]);
      MultiplyAddF16(s[i + 1], operand, b[2], b[3]);
    }
  }
}

// One block per sequence, value head and kColumns columns.
__global__ void __launch_bounds__(kThreads) ChunksKernel(const DeltaArguments a) {
  extern __shared__ __align__(128) std::byte memory[];
  WaitForKernelBefore();
  if (static_cast<int32_t>(blockIdx.z) >= *a.states.step.count) return;
  const StepSequence& sequence = a.states.step.sequences[blockIdx.z];
  const int32_t first_row = sequence.first_row, rows = sequence.rows;
  if (rows < a.chunked_rows) return;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t half = warp % 2, warp_column = warp / 2 * kWarpColumns + lane / 4;
  const int32_t block_column = static_cast<int32_t>(blockIdx.x) * kColumns;
  // Of the first of the block's values in a row of `convolved`.
  const int32_t value = 2 * a.key_heads * kChunkDim + head * kChunkDim + block_column;
  const uint32_t shared = SharedAddress(memory);
  const ChunkOperands operands(a);
  LoadChunk(a, operands, shared, first_row, min(kChunk, rows), head, value);

  StateTiles s;
  float* const state = StateOf(a, sequence, head, block_column + warp_column) +
                       (half * kWarpKeys + lane % 4 * 2) * kChunkDim;
  LoadState(state, sequence.past == 0, s);

  auto* const partials = reinterpret_cast<float4*>(memory + kPartials);
  float4* const given = partials + warp * kGiven * 32 + lane;
  const float4* const taken = partials + (warp ^ 1) * kGiven * 32 + lane;
  for (int32_t begin = 0; begin < rows; begin += kChunk) {
    const uint32_t place = begin / kChunk % 2 * kStageBytes, stage = shared + place;
    WaitForCopies<0>();
    __syncthreads();  // the operands are complete, and those before have been read
    const int32_t count = min(kChunk, rows - begin), left = rows - begin - count;
    if (left > 0) {
      LoadChunk(a, operands, shared + kStageBytes - place, first_row + begin + count,
                min(kChunk, left), head, value);
    }
    const auto* factors = reinterpret_cast<const ChunkFactors*>(memory + place + kFactors);
    const auto* values = reinterpret_cast<const float*>(memory + place + kValues) + warp_column;

    ChunkTiles key_sums = {}, query_sums = {}, corrections = {};
    OwnTiles own;
    MultiplyState(s, stage, half, key_sums, query_sums);
    AddOtherKeys(given, taken, half, key_sums, query_sums, own);
    Correct(values, factors, stage, key_sums, corrections);
    MakeOutputs(a, corrections, factors, stage, half, first_row + begin, count, value + warp_column,
                own);
    UpdateState(factors, stage, half, count, corrections, s);
  }
  StoreState(s, state);
}

bool SharedMemorySuffices() {
  const size_t most = AllowSharedMemory(ChunksKernel);
  return most >= kSharedBytes;
}

}  // namespace

bool CanUpdateByChunks(const GatedDeltaShape& shape, const MatrixView& qkv,
                       const MatrixView& convolved) {
  return shape.key_dim == kChunkDim && shape.value_dim == kChunkDim &&
         shape.value_heads <= shape.key_heads * kMostChunkGroup && Aligned(qkv, 4) &&
         Aligned(convolved, 4) && SharedMemorySuffices();
}

void UpdateByChunks(CudaStream& stream, const DeltaArguments& a) {
  MakeChunkOperands(stream, a);
  const dim3 grid(kChunkDim / kColumns, static_cast<unsigned>(a.value_heads),
                  static_cast<unsigned>(a.states.step.capacity));
  LaunchOverlapping(stream, ChunksKernel, grid, kThreads, kSharedBytes, a);
}

}  // namespace litecache::ops::cuda
