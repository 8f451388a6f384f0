// Chooses the blocks of rows that a prompt chunk attends: gathers squares of keys and queries,
// multiplies them (cuBLASLt), and sums the softmax of the products by block.
#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/shared_memory.cuh"
#include "ops/linear/linear.h"
#include "ops/rows/paged_rows.cuh"
#include "ops/sparse_prefill/choose_blocks.cuh"
#include "ops/sparse_prefill/sparse_prefill.h"
#include "ops/sparse_prefill/sparse_prefill_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kGatherThreads = 256;
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
