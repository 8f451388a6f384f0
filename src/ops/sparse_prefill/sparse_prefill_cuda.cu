// Chooses the blocks of rows that a prompt chunk attends: gathers squares of keys and queries,
// multiplies them (cuBLASLt), and sums the softmax of the products by block.
#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/online_softmax.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/linear/linear.h"
#include "ops/rows/paged_rows.cuh"
#include "ops/sparse_prefill/sparse_prefill.h"
#include "ops/sparse_prefill/sparse_prefill_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kGatherThreads = 256;
constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kSide = static_cast<int>(kSparseStride);  // of a square
constexpr int kRows = KeptBlocks::kRows;
constexpr int kRowSquares = kRows / kSide;  // in a block of rows
constexpr int kMostSquares = 12;            // in a block of queries
constexpr int kParts = 4;                   // of a square's scores, one warp for each
// Scores in memory at a time, 256 MiB: the products of a long context are made for a few blocks of
// queries after another. Of a million tokens these are 32, of four heads, a block for each SM.
constexpr int64_t kMostScores = int64_t{1} << 26;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The sizes of one choice.
struct Sizes {
  int32_t query_rows, query_blocks, squares;  // squares: in a block of queries
  int32_t blocks, words;                      // of rows; of their bits
  int32_t columns;                            // squares of rows, whole blocks of them
  int32_t at_once;                            // blocks of queries
  int64_t depth;                              // values of a square of one head

  Sizes(int64_t group, int64_t head_dim, int64_t rows, int64_t context) {
    // A tile of queries of the kernel for Hopper (flashinfer/hopper_kernel.cuh).
    query_rows = head_dim == 64 ? 192 : 128;
    query_blocks = static_cast<int32_t>(CeilDiv(rows, query_rows));
    squares = query_rows / kSide;
    blocks = static_cast<int32_t>(CeilDiv(context, kRows));
    words = static_cast<int32_t>(CeilDiv(blocks, 32));
    columns = blocks * kRowSquares;
    const int64_t scores = group * squares * columns;
    at_once = static_cast<int32_t>(std::clamp<int64_t>(kMostScores / scores, 1, query_blocks));
    depth = kSide * head_dim;
  }
};

// Parts of the memory, one after another.
class Parts {
 public:
  explicit Parts(void* memory) : next_(static_cast<std::byte*>(memory)) {}
  template <typename T>
  T* Take(int64_t count) {
    auto* part = reinterpret_cast<T*>(next_);
    next_ += CeilDiv(count * static_cast<int64_t>(sizeof(T)), 256) * 256;
    return part;
  }
  size_t taken(void* memory) const {
    return static_cast<size_t>(next_ - static_cast<std::byte*>(memory));
  }

 private:
  std::byte* next_;
};

struct Memory {
  uint32_t* bits;
  uint16_t* lists;
  int32_t* counts;
  __nv_bfloat16 *keys, *queries;
  float* scores;
  size_t bytes;

  Memory(const Sizes& sizes, int64_t q_heads, int64_t group, void* memory) {
    Parts parts(memory);
    const int64_t pairs = q_heads * sizes.query_blocks;
    bits = parts.Take<uint32_t>(pairs * sizes.words);
    lists = parts.Take<uint16_t>(pairs * sizes.blocks);
    counts = parts.Take<int32_t>(pairs);
    keys = parts.Take<__nv_bfloat16>(sizes.columns * sizes.depth);
    const int64_t rows = group * sizes.at_once * sizes.squares;
    queries = parts.Take<__nv_bfloat16>(rows * sizes.depth);
    scores = parts.Take<float>(rows * sizes.columns);
    bytes = parts.taken(memory);
  }
};

// Writes the keys of a head: square j is a row of 16 keys, zeros behind the context. A block
// writes a square.
__global__ void GatherKeysKernel(const StepView step, const TableAccess access, int32_t head,
                                 int32_t context, __nv_bfloat16* keys) {
  const int32_t index = access.table.list_of_head[head];
  if (index < 0) return;
  const RowList list = access.List(step.sequences[0], index);
  const int head_dim = access.table.format.head_dim, chunks = head_dim / 8;
  auto* out = reinterpret_cast<uint4*>(keys) + int64_t{blockIdx.x} * kSide * chunks;
  for (int i = threadIdx.x; i < kSide * chunks; i += blockDim.x) {
    const int r = i / chunks, chunk = i - r * chunks;
    const int32_t row = static_cast<int32_t>(blockIdx.x) * kSide + r;
    out[i] = row < context ? reinterpret_cast<const uint4*>(list.Row(row))[chunk] : uint4{};
  }
}

struct Chunk {
  const float* q;
  int64_t q_stride;
  int32_t head_dim, group, rows, past;
};

// Writes the queries of a KV head's group, from square `first` on: row (h, i) holds the 16 queries
// of head h in square first + i, the last one first; zeros behind the chunk. A block writes a row.
__global__ void GatherQueriesKernel(const StepView step, const Chunk chunk, int32_t kv_head,
                                    int32_t first, __nv_bfloat16* queries) {
  const int32_t first_row = step.sequences[0].first_row;
  const int pairs = chunk.head_dim / 2;
  const auto square = static_cast<int32_t>(first + blockIdx.x);
  const int32_t head = kv_head * chunk.group + static_cast<int32_t>(blockIdx.y);
  auto* out = reinterpret_cast<uint32_t*>(queries) +
              (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kSide * pairs;
  for (int i = threadIdx.x; i < kSide * pairs; i += blockDim.x) {
    const int r = i / pairs, c = i - r * pairs;
    const int32_t token = square * kSide + kSide - 1 - r;
    uint32_t value = 0;
    if (token < chunk.rows) {
      const auto pair = *reinterpret_cast<const float2*>(
          chunk.q + (first_row + token) * chunk.q_stride + int64_t{head} * chunk.head_dim + 2 * c);
      value = PackBf16(pair.x, pair.y);
    }
    out[i] = value;
  }
}

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
    return cap.cap == 0 ? score : cap(score);
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
      if (cap.cap != 0) {
        for (float& score : out) score = cap(score);
      }
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

// A block chooses for one block of queries of one head.
__global__ void __launch_bounds__(kThreads) ChooseKernel(const __grid_constant__ Choice p) {
  extern __shared__ float shares[];  // [row_blocks]
  __shared__ float maxima[kMostSquares], inverses[kMostSquares], of_warps[kWarps];
  __shared__ float part_maxima[kMostSquares * kParts], part_sums[kMostSquares * kParts];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto block = static_cast<int32_t>(p.first_block + blockIdx.x);
  const Chunk& chunk = p.chunk;
  const int32_t begin = block * p.query_rows;
  const int32_t end = min(begin + p.query_rows, chunk.rows);
  const int32_t squares = (end - begin + kSide - 1) / kSide;
  const int32_t context = chunk.past + chunk.rows;
  const auto square = [&](int32_t i) {
    const int32_t last = min(begin + (i + 1) * kSide, end);
    Square s;
    s.scores = p.scores + ((int64_t{blockIdx.y} * p.blocks_here + blockIdx.x) * p.squares + i) *
                              int64_t{p.columns};
    s.visible = (chunk.past + last - 1) / kSide + 1;
    s.context = context;
    s.missing = begin + (i + 1) * kSide - last;
    s.cap = p.cap;
    return s;
  };

  for (int32_t i = warp; i < squares * kParts; i += kWarps) {
    const MaximumAndSum result = Reduce(square(i / kParts), i % kParts, lane, p.factor);
    if (lane == 0) {
      part_maxima[i] = result.maximum;
      part_sums[i] = result.sum;
    }
  }
  __syncthreads();
  if (const auto i = static_cast<int32_t>(threadIdx.x); i < squares) {
    MaximumAndSum whole;
    for (int32_t part = 0; part < kParts; ++part) {
      whole.Add({part_maxima[i * kParts + part], part_sums[i * kParts + part]});
    }
    maxima[i] = whole.maximum;
    inverses[i] = 1 / (whole.sum * static_cast<float>(squares));
  }
  __syncthreads();

  // The blocks that the last of the queries sees; those that the first one's token begins in are
  // kept whatever their share.
  const int32_t visible = (chunk.past + end - 1) / kRows + 1;
  const int32_t own = (chunk.past + begin) / kRows;
  const bool all = p.whole_end && block == p.query_blocks - 1;
  float highest = 0, total = 0;
  for (int32_t b = threadIdx.x; b < visible; b += kThreads) {
    float share = 0;
    const int32_t first = b * kRowSquares;
    const bool whole =
        square(0).Whole(first, kRowSquares) && square(squares - 1).Whole(first, kRowSquares);
#pragma unroll 4
    for (int32_t i = 0; i < squares; ++i) {
      const Square s = square(i);
      float scores[kRowSquares / 4][4], sum = 0;
#pragma unroll
      for (int j = 0; j < kRowSquares / 4; ++j) {
        s.Scores(first + 4 * j, p.factor, whole, scores[j]);
      }
#pragma unroll
      for (int j = 0; j < kRowSquares; ++j) {
        if (!whole && first + j >= s.visible) continue;
        sum += CarefulExp2(scores[j / 4][j % 4] - maxima[i]);
      }
      share += sum * inverses[i];
    }
    const bool forced = all || b == 0 || b >= own;
    shares[b] = forced ? -share : share;  // the sign marks what is kept in any case
    highest = fmaxf(highest, share);
    total += share;
  }
  total = BlockSum(total, of_warps);

  // The largest limit at which the blocks' shares still add up to the mass, by bisection of its
  // bits: positive numbers are ordered as these are.
  uint32_t low = 0, high = 0x7f800000;
  const float wanted = p.mass * total;
  while (!all && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    float sum = 0;
    for (int32_t b = threadIdx.x; b < visible; b += kThreads) {
      const float share = shares[b];
      if (share <= 0 || __float_as_uint(share) >= middle) sum += fabsf(share);
    }
    (BlockSum(sum, of_warps) >= wanted ? low : high) = middle;
  }

  const int64_t pair =
      int64_t{p.kv_head * chunk.group + static_cast<int32_t>(blockIdx.y)} * p.query_blocks + block;
  uint32_t* bits = p.bits + pair * p.words;
  __syncthreads();
  for (int32_t w = warp; w < p.words; w += kWarps) {
    const int32_t b = w * 32 + lane;
    bool kept = false;
    if (b < visible) {
      const float share = shares[b];
      kept = all || b == 0 || b >= own || __float_as_uint(fabsf(share)) >= max(low, 1u);
    }
    const unsigned word = __ballot_sync(kAll, kept);
    if (lane == 0) bits[w] = word;
  }
  __syncthreads();
  if (warp != 0) return;
  int32_t before = 0;
  uint16_t* list = p.lists + pair * p.row_blocks;
  for (int32_t first = 0; first < p.words; first += 32) {
    const unsigned word = first + lane < p.words ? bits[first + lane] : 0;
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
  if (lane == 0) p.counts[pair] = before;
}

}  // namespace

bool SparsePrefillServes(const RowFormat& format) {
  return format.encoding == RowEncoding::kBF16 && format.head_dim % 8 == 0;
}

size_t SparsePrefillBytes(int64_t kv_heads, int64_t q_heads, int64_t head_dim, int64_t rows,
                          int64_t context) {
  const int64_t group = q_heads / kv_heads;
  return Memory(Sizes(group, head_dim, rows, context), q_heads, group, nullptr).bytes;
}

DeviceKeptBlocks ChooseBlocks(Stream& stream, const StepView& step, int64_t kv_heads,
                              const RowTable& table, std::span<const int32_t> heads,
                              const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                              double mass, bool whole_end, void* memory) {
  LC_CHECK(step.capacity == 1 && SparsePrefillServes(table.format) && q.dtype == DType::kF32);
  const int64_t group = q_heads / kv_heads, head_dim = table.format.head_dim;
  const int32_t rows = step.max_rows, context = step.max_context;
  const Sizes sizes(group, head_dim, rows, context);
  LC_CHECK(sizes.blocks <= 65536 && sizes.squares <= kMostSquares);
  const Memory m(sizes, q_heads, group, memory);
  CudaStream& cuda = AsCuda(stream);
  const TableAccess access(table);
  const Chunk chunk = {.q = q.Row<const float>(0),
                       .q_stride = q.stride,
                       .head_dim = static_cast<int32_t>(head_dim),
                       .group = static_cast<int32_t>(group),
                       .rows = rows,
                       .past = context - rows};
  const size_t most = AllowSharedMemory(ChooseKernel);
  const size_t shares = static_cast<size_t>(sizes.blocks) * sizeof(float);
  LC_CHECK(shares <= most, "a context of {} tokens is too long for sparse attention", context);
  const auto matrix = [](void* data, DType dtype, int64_t matrix_rows, int64_t columns) {
    return MatrixView{data, dtype, matrix_rows, columns, columns};
  };
  for (const int32_t head : heads) {
    GatherKeysKernel<<<static_cast<unsigned>(sizes.columns), kGatherThreads, 0, cuda.handle()>>>(
        step, access, head, context, m.keys);
    LC_CUDA_LAUNCHED();
    for (int32_t first = 0; first < sizes.query_blocks; first += sizes.at_once) {
      const int32_t here = std::min(sizes.at_once, sizes.query_blocks - first);
      const int32_t squares = here * sizes.squares;
      const dim3 grid(static_cast<unsigned>(squares), static_cast<unsigned>(group));
      GatherQueriesKernel<<<grid, kGatherThreads, 0, cuda.handle()>>>(
          step, chunk, head, first * sizes.squares, m.queries);
      LC_CUDA_LAUNCHED();
      Linear(stream, matrix(m.queries, DType::kBF16, group * squares, sizes.depth),
             matrix(m.keys, DType::kBF16, sizes.columns, sizes.depth), nullptr,
             matrix(m.scores, DType::kF32, group * squares, sizes.columns));
      const Choice choice = {.chunk = chunk,
                             .scores = m.scores,
                             .columns = sizes.columns,
                             .squares = sizes.squares,
                             .query_rows = sizes.query_rows,
                             .first_block = first,
                             .blocks_here = here,
                             .query_blocks = sizes.query_blocks,
                             .kv_head = head,
                             .row_blocks = sizes.blocks,
                             .words = sizes.words,
                             .factor = softmax.scale * kLog2E / kSide,
                             .cap = SoftCapOf(softmax.cap * kLog2E),
                             .mass = static_cast<float>(mass),
                             .whole_end = whole_end,
                             .bits = m.bits,
                             .lists = m.lists,
                             .counts = m.counts};
      const dim3 choices(static_cast<unsigned>(here), static_cast<unsigned>(group));
      ChooseKernel<<<choices, kThreads, shares, cuda.handle()>>>(choice);
      LC_CUDA_LAUNCHED();
    }
  }
  DeviceKeptBlocks kept;
  kept.query_rows = sizes.query_rows;
  kept.query_blocks = sizes.query_blocks;
  kept.words = sizes.words;
  kept.bits = m.bits;
  kept.lists = m.lists;
  kept.counts = m.counts;
  kept.list_size = sizes.blocks;
  return kept;
}

}  // namespace litecache::ops::cuda
