// The choice itself: what each block of queries keeps, by the softmax of its squares' scores.
#pragma once

#include <cstdint>

#include "ops/common/online_softmax.cuh"
#include "ops/rows/paged_rows.cuh"
#include "ops/sparse_prefill/sparse_prefill.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kSide = static_cast<int>(kSparseStride);  // of a square
constexpr int kRows = KeptBlocks::kRows;
constexpr int kRowSquares = kRows / kSide;  // in a block of rows
constexpr int kMostSquares = 12;            // in a block of queries
constexpr int kParts = 4;                   // of a square's scores, one warp for each

struct Chunk {
  const float* q;
  int64_t q_stride;
  int32_t head_dim, group, rows, past;
};

struct Choice {
  Chunk chunk;
  const float* scores;  // [group][squares of these queries][columns]
  int32_t columns, squares, query_rows;
  int32_t first_block, blocks_here, query_blocks;  // of queries
  int32_t kv_head, row_blocks, words;
  float factor;   // of a sum of 16 scores, for units of log2 e
  SoftCapOf cap;  // of their means, in these units
  float mass;
  bool whole_end;
  uint32_t* bits;
  uint16_t* lists;
  int32_t* counts;
};

// The sum of a value over the block. Called by the whole block.
__device__ float BlockSum(float value, float* of_warps) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += of_warps[w];
  return sum;
}

// A square of queries against the squares of rows that it sees.
struct Square {
  const float* scores;
  int32_t visible = 0;  // squares of rows; the last may have fewer pairs than 16
  int32_t context = 0, missing = 0;
  SoftCapOf cap;

  // Which pairs of an antidiagonal exist: queries behind the chunk and rows behind the context do
  // not.
  __device__ float Score(int32_t column, float factor) const {
    const int there = min(kSide, context - column * kSide) - missing;
    if (there <= 0) return -INFINITY;
    float score = scores[column] * factor;
    if (there < kSide) score = score * kSide / there;
    cap.Apply(score);
    return score;
  }
  // Whether all pairs of `count` squares of rows are there and visible.
  __device__ bool Whole(int32_t column, int32_t count) const {
    return missing == 0 && column + count <= visible && (column + count) * kSide <= context;
  }
  // Four scores, column a multiple of 4: with loads of one each, a warp would wait for memory most
  // of the time. whole: as Whole(column, 4). What is not visible is minus infinity.
  __device__ void Scores(int32_t column, float factor, bool whole, float (&out)[4]) const {
    if (whole) {
      const float4 four = *reinterpret_cast<const float4*>(scores + column);
      out[0] = four.x * factor;
      out[1] = four.y * factor;
      out[2] = four.z * factor;
      out[3] = four.w * factor;
      cap.Apply(out);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = column + i < visible ? Score(column + i, factor) : -INFINITY;
    }
  }
};

// The maximum of scores and the sum of their powers of 2 below it.
struct MaximumAndSum {
  float maximum = -kLargestScore, sum = 0;

  __device__ void Add(const MaximumAndSum& other) {
    const float highest = fmaxf(maximum, other.maximum);
    sum = sum * Exp2(maximum - highest) + other.sum * Exp2(other.maximum - highest);
    maximum = highest;
  }
};

// Of one of kParts parts of a square, in every lane.
__device__ MaximumAndSum Reduce(const Square& s, int part, int lane, float factor) {
  constexpr int kLoads = 4;                 // of four scores each, of a lane at a time
  constexpr int kAtOnce = kLoads * 4 * 32;  // scores of a warp
  MaximumAndSum result;
  for (int32_t c = part * kAtOnce; c < s.visible; c += kParts * kAtOnce) {
    float scores[kLoads][4];
    const bool whole = s.Whole(c, kAtOnce);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) s.Scores(c + (i * 32 + lane) * 4, factor, whole, scores[i]);
    MaximumAndSum more;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (float& score : scores[i]) {
        score = fminf(score, kLargestScore);
        more.maximum = fmaxf(more.maximum, score);
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (const float score : scores[i]) more.sum += Exp2(score - more.maximum);
    }
    result.Add(more);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    result.Add(
        {__shfl_xor_sync(kAll, result.maximum, step), __shfl_xor_sync(kAll, result.sum, step)});
  }
  return result;
}

// The block of queries, of one head, for which a block of threads chooses.
struct QueryBlock {
  const Choice& p;
  int32_t block, begin, end;  // queries [begin, end) of the chunk
  int32_t squares;
  int32_t visible;  // blocks of rows that the last of the queries sees
  int32_t own;      // the one that the first query's token is in: kept from there on
  bool all;         // all are kept

  __device__ explicit QueryBlock(const Choice& choice)
      : p(choice),
        block(static_cast<int32_t>(p.first_block + blockIdx.x)),
        begin(block * p.query_rows),
        end(min(begin + p.query_rows, p.chunk.rows)),
        squares((end - begin + kSide - 1) / kSide),
        visible((p.chunk.past + end - 1) / kRows + 1),
        own((p.chunk.past + begin) / kRows),
        all(p.whole_end && block == p.query_blocks - 1) {}

  __device__ Square SquareOf(int32_t i) const {
    const int32_t last = min(begin + (i + 1) * kSide, end);
    Square s;
    s.scores = p.scores + ((int64_t{blockIdx.y} * p.blocks_here + blockIdx.x) * p.squares + i) *
                              int64_t{p.columns};
    s.visible = (p.chunk.past + last - 1) / kSide + 1;
    s.context = p.chunk.past + p.chunk.rows;
    s.missing = begin + (i + 1) * kSide - last;
    s.cap = p.cap;
    return s;
  }
  // Whether row block `b` is kept whatever its share.
  __device__ bool Forced(int32_t b) const { return all || b == 0 || b >= own; }
};

// For each square, the maximum of its scores and the factor of their powers of 2 in the shares.
struct Softmaxes {
  float maxima[kMostSquares], inverses[kMostSquares];
  float part_maxima[kMostSquares * kParts], part_sums[kMostSquares * kParts];
};

// Called by the whole block.
__device__ void ReduceSquares(const QueryBlock& q, Softmaxes* of) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int32_t i = warp; i < q.squares * kParts; i += kWarps) {
    const MaximumAndSum result = Reduce(q.SquareOf(i / kParts), i % kParts, lane, q.p.factor);
    if (lane == 0) {
      of->part_maxima[i] = result.maximum;
      of->part_sums[i] = result.sum;
    }
  }
  __syncthreads();
  if (const auto i = static_cast<int32_t>(threadIdx.x); i < q.squares) {
    MaximumAndSum whole;
    for (int32_t part = 0; part < kParts; ++part) {
      whole.Add({of->part_maxima[i * kParts + part], of->part_sums[i * kParts + part]});
    }
    of->maxima[i] = whole.maximum;
    of->inverses[i] = 1 / (whole.sum * static_cast<float>(q.squares));
  }
  __syncthreads();
}

// The share of row block `b` in the softmax, averaged over the squares.
__device__ float ShareOf(const QueryBlock& q, const Softmaxes& of, int32_t b) {
  const int32_t first = b * kRowSquares;
  const bool whole = q.SquareOf(0).Whole(first, kRowSquares) &&
                     q.SquareOf(q.squares - 1).Whole(first, kRowSquares);
  float share = 0;
#pragma unroll 4
  for (int32_t i = 0; i < q.squares; ++i) {
    const Square s = q.SquareOf(i);
    float scores[kRowSquares / 4][4], sum = 0;
#pragma unroll
    for (int j = 0; j < kRowSquares / 4; ++j) {
      s.Scores(first + 4 * j, q.p.factor, whole, scores[j]);
    }
#pragma unroll
    for (int j = 0; j < kRowSquares; ++j) {
      if (!whole && first + j >= s.visible) continue;
      sum += CarefulExp2(scores[j / 4][j % 4] - of.maxima[i]);
    }
    share += sum * of.inverses[i];
  }
  return share;
}

// The largest limit, as its bits, at which the shares from it on, and those that are kept in any
// case, still add up to `wanted`: by bisection of the bits, since positive numbers are ordered as
// these are. shares: of the thread's row blocks, negative for what is kept in any case. Called by
// the whole block.
__device__ uint32_t LimitOf(const QueryBlock& q, const float* shares, float wanted,
                            float* of_warps) {
  uint32_t low = 0, high = 0x7f800000;
  while (!q.all && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    float sum = 0;
    for (int32_t b = threadIdx.x; b < q.visible; b += kThreads) {
      const float share = shares[b];
      if (share <= 0 || __float_as_uint(share) >= middle) sum += fabsf(share);
    }
    (BlockSum(sum, of_warps) >= wanted ? low : high) = middle;
  }
  return low;
}

// Called by the whole block.
__device__ void WriteBits(const QueryBlock& q, const float* shares, uint32_t limit,
                          uint32_t* bits) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int32_t w = warp; w < q.p.words; w += kWarps) {
    const int32_t b = w * 32 + lane;
    bool kept = false;
    if (b < q.visible) {
      kept = q.Forced(b) || __float_as_uint(fabsf(shares[b])) >= max(limit, 1u);
    }
    const unsigned word = __ballot_sync(kAll, kept);
    if (lane == 0) bits[w] = word;
  }
}

// Writes the places of the set bits in order, and returns how many there are. Called by a warp.
__device__ int32_t WriteList(const uint32_t* bits, int32_t words, uint16_t* list) {
  const int lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int32_t first = 0; first < words; first += 32) {
    const unsigned word = first + lane < words ? bits[first + lane] : 0;
    int32_t sum = __popc(word);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    int32_t at = before + sum - __popc(word);
    for (unsigned left = word; left != 0; left &= left - 1) {
      list[at++] = static_cast<uint16_t>((first + lane) * 32 + __ffs(static_cast<int>(left)) - 1);
    }
    before += __shfl_sync(kAll, sum, 31);
  }
  return before;
}

// A block chooses for one block of queries of one head.
__global__ void __launch_bounds__(kThreads) ChooseKernel(const __grid_constant__ Choice p) {
  extern __shared__ float shares[];  // [row_blocks]
  __shared__ Softmaxes softmaxes;
  __shared__ float of_warps[kWarps];
  const QueryBlock q(p);
  ReduceSquares(q, &softmaxes);
  float total = 0;
  for (int32_t b = threadIdx.x; b < q.visible; b += kThreads) {
    const float share = ShareOf(q, softmaxes, b);
    shares[b] = q.Forced(b) ? -share : share;  // the sign marks what is kept in any case
    total += share;
  }
  total = BlockSum(total, of_warps);
  const uint32_t limit = LimitOf(q, shares, p.mass * total, of_warps);
  const int64_t pair =
      int64_t{p.kv_head * p.chunk.group + static_cast<int32_t>(blockIdx.y)} * p.query_blocks +
      q.block;
  uint32_t* bits = p.bits + pair * p.words;
  __syncthreads();
  WriteBits(q, shares, limit, bits);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int32_t count = WriteList(bits, p.words, p.lists + pair * p.row_blocks);
  if (threadIdx.x == 0) p.counts[pair] = count;
}

}  // namespace
}  // namespace litecache::ops::cuda
