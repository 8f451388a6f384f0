#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/recurrence/gated_delta_check.h"
#include "ops/recurrence/gated_delta_chunks_cuda.h"
#include "ops/recurrence/gated_delta_cuda.h"
#include "ops/recurrence/gated_delta_parts.cuh"
#include "ops/recurrence/gated_delta_tokens.cuh"
#include "ops/rows/paged_rows.cuh"

namespace litecache::ops::cuda {
namespace {

// Sequences with fewer rows are updated token by token: in less than 22 us.
constexpr int32_t kLeastChunkedRows = 64;
constexpr int32_t kNoChunks = std::numeric_limits<int32_t>::max();

// Columns of a block: those of a head, if a block's registers can hold them, so that it can norm
// their outputs; or few, to have more blocks than a GPU has multiprocessors.
constexpr int kWholeColumns = 128, kFewColumns = 32;

// out = RmsNorm(raw) * silu(gate) of a head; by one warp.
template <typename Out>
__device__ inline void NormHead(const float* raw, const float* gate, const float* norm, int32_t n,
                                float epsilon, Out* out) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  constexpr int kMost = kMostDeltaDim / 32;
  float x[kMost];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int32_t c = i * 32 + lane;
    x[i] = c < n ? raw[c] : 0.0f;
    squares = fmaf(x[i], x[i], squares);
  }
  const float factor = 1.0f / sqrtf(LaneSum(squares) / static_cast<float>(n) + epsilon);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int32_t c = i * 32 + lane;
    if (c < n) out[c] = static_cast<Out>(x[i] * factor * norm[c] * Silu(gate[c]));
  }
}

// One block per sequence, value head and columns. kRows: of S in a lane. Whole heads (Out is a
// type) are of single rows and written to `out`; otherwise outputs take their values' place in
// `convolved`.
template <int kRows, typename Out>
__global__ void __launch_bounds__(kParts*(std::is_void_v<Out> ? kFewColumns : kWholeColumns),
                                  std::is_void_v<Out> || kRows > 32 ? 1 : 2)
    DeltaKernel(const DeltaArguments a) {
  constexpr bool kWhole = !std::is_void_v<Out>;
  constexpr int kColumns = kWhole ? kWholeColumns : kFewColumns;
  constexpr int kPadded = kRows * kParts;
  constexpr int kTokens = kWhole ? 1 : 512 / kRows, kTiles = kWhole ? 1 : 2;
  __shared__ Tile<kTokens, kPadded, kColumns> tiles[kTiles];
  __shared__ float raw[kWhole ? kColumns : 1];
  if constexpr (kWhole) LetNextKernelStart();
  WaitForKernelBefore();
  if (static_cast<int32_t>(blockIdx.z) >= *a.states.step.count) return;
  const StepSequence& sequence = a.states.step.sequences[blockIdx.z];
  if (!kWhole && sequence.rows >= a.chunked_rows) return;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / 32, warps = static_cast<int32_t>(blockDim.x) / 32;
  const int32_t own = thread / kParts, part = thread % kParts;
  const int32_t first_column = static_cast<int32_t>(blockIdx.x) * kColumns;
  const int32_t columns = min(kColumns, a.value_dim - first_column);
  const bool exists = own < columns;
  const int32_t first_row = sequence.first_row, rows = kWhole ? 1 : sequence.rows;
  CopyTile<!kWhole>(a, tiles[0], first_row, min(kTokens, rows), head, first_column, columns);
  for (auto& tile : tiles) {
    for (int32_t t = warp; t < kTokens; t += warps) {
      for (int32_t i = a.key_dim + thread % 32; i < kPadded; i += 32) {
        tile.keys[t][i] = tile.queries[t][i] = 0.0f;
      }
    }
  }

  const bool fresh = sequence.past == 0;
  float s[kRows];
  ForEachRow<kRows>(StateOf(a, sequence, head, first_column + own), a.value_dim, part,
                    [&](int i, int32_t row, const float* element) {
                      s[i] = exists && !fresh && row < a.key_dim ? *element : 0.0f;
                    });
  const float log_rate = a.log_rate[head], rate_bias = a.rate_bias[head];

  for (int32_t begin = 0; begin < rows; begin += kTokens) {
    auto& tile = tiles[begin / kTokens % kTiles];
    WaitForCopies<0>();
    __syncthreads();  // the tile is complete, and the one before has been read
    const int32_t count = min(kTokens, rows - begin), left = rows - begin - count;
    if constexpr (!kWhole) {
      if (left > 0) {
        CopyTile<true>(a, tiles[(begin / kTokens + 1) % kTiles], first_row + begin + count,
                       min(kTokens, left), head, first_column, columns);
      }
    }
    if constexpr (kWhole) {
      if (warp == 0) {
        const float product = NormalizeToken(a, tile.keys[0], tile.queries[0]);
        if (thread == 0) {
          TokenFactors& factors = tile.factors[0];
          const float exponent = DecayExponent(factors.decay, log_rate, rate_bias);
          factors = {expf(-exponent), Sigmoid(factors.step), product};
        }
      }
      __syncthreads();
    }
#pragma unroll 2
    for (int32_t t = 0; t < count; ++t) {
      const float value = exists ? tile.values[t][own] : 0.0f;
      const float y =
          UpdateColumn<kWhole>(s, tile.keys[t], tile.queries[t], tile.factors[t], value);
      if (exists && part == 0) {
        if constexpr (kWhole) {
          raw[own] = y;
        } else {
          a.convolved[first_row + begin + t]
                     [2 * a.key_heads * a.key_dim + head * a.value_dim + first_column + own] = y;
        }
      }
    }
  }

  ForEachRow<kRows>(StateOf(a, sequence, head, first_column + own), a.value_dim, part,
                    [&](int i, int32_t row, float* element) {
                      if (exists && row < a.key_dim) *element = s[i];
                    });
  if constexpr (kWhole) {
    __syncthreads();
    if (warp == 0) {
      NormHead(raw, a.gate[first_row] + head * a.value_dim, a.norm, a.value_dim, a.norm_eps,
               static_cast<Out*>(a.out) + first_row * a.out_stride + head * a.value_dim);
    }
  }
}

constexpr int kRowWarps = 8;

// Of prompts: normalizes keys and queries in place and makes the factors of rates and steps. By one
// warp per row and key head, if the row is of a sequence. In the blocks that update the
// states, four for each value head, this took two fifths of their time.
__global__ void __launch_bounds__(kRowWarps * 32)
    PrepareKernel(const DeltaArguments a, int32_t rows, Divider heads) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const auto item = static_cast<int32_t>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t row = heads.Quotient(item);
  if (row >= rows) return;
  const int32_t sequence = SequenceOfRow(a.states.step, row);
  if (sequence < 0 || a.states.step.sequences[sequence].rows >= a.chunked_rows) return;
  const int32_t key_head = item - row * a.key_heads;
  float* const query = a.convolved[row] + key_head * a.key_dim;
  const float product = NormalizeToken(a, query + a.key_heads * a.key_dim, query);
  if (lane == 0) a.scratch[row][key_head] = product;
  for (int32_t i = lane; i < a.group; i += 32) {
    const int32_t head = ValueHead(a, key_head, i);
    float& rate = a.rate[row][head];
    rate = expf(-DecayExponent(rate, a.log_rate[head], a.rate_bias[head]));
    a.step[row][head] = Sigmoid(a.step[row][head]);
  }
}

// One warp per row and value head, if the row is of a sequence.
template <typename Out>
__global__ void __launch_bounds__(kRowWarps * 32)
    NormKernel(const DeltaArguments a, int32_t rows, Divider heads) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const auto item = static_cast<int32_t>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const int32_t row = heads.Quotient(item);
  if (row >= rows || SequenceOfRow(a.states.step, row) < 0) return;
  const int32_t column = (item - row * a.value_heads) * a.value_dim;
  NormHead(a.convolved[row] + 2 * a.key_heads * a.key_dim + column, a.gate[row] + column, a.norm,
           a.value_dim, a.norm_eps, static_cast<Out*>(a.out) + row * a.out_stride + column);
}

// Out: of whole heads, or void.
template <typename Out>
void Update(CudaStream& stream, const DeltaArguments& a) {
  constexpr int kColumns = std::is_void_v<Out> ? kFewColumns : kWholeColumns;
  const dim3 grid(static_cast<unsigned>((a.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(a.value_heads),
                  static_cast<unsigned>(a.states.step.capacity));
  const int32_t columns = (std::min(kColumns, a.value_dim) + 7) / 8 * 8;  // of whole warps
  const auto kernel = a.key_dim <= 64    ? DeltaKernel<16, Out>
                      : a.key_dim <= 128 ? DeltaKernel<32, Out>
                                         : DeltaKernel<64, Out>;
  LaunchOverlapping(stream, kernel, grid, static_cast<unsigned>(columns * kParts), 0, a);
}

// DeltaArguments::chunked_rows. The single sequence of a step needs only one of the updates.
int32_t ChunkedRows(const CudaStream& stream, const StepView& step, const GatedDeltaShape& shape,
                    const MatrixView& qkv, const MatrixView& convolved, const MatrixView& out) {
  if (step.max_rows < kLeastChunkedRows || out.dtype != DType::kBF16 || stream.batch_invariant() ||
      !CanUpdateByChunks(shape, qkv, convolved)) {
    return kNoChunks;
  }
  return step.capacity == 1 ? 1 : kLeastChunkedRows;
}

template <typename Out>
void UpdateAndNorm(CudaStream& stream, const DeltaArguments& a, int32_t rows, bool single_rows) {
  if (single_rows && a.value_dim <= kWholeColumns) {
    Update<Out>(stream, a);
    return;
  }
  const auto for_rows = [&](auto* kernel, int32_t heads) {
    const int32_t items = rows * heads;
    LaunchOverlapping(stream, kernel, static_cast<unsigned>((items + kRowWarps - 1) / kRowWarps),
                      kRowWarps * 32, 0, a, rows, Divider(heads));
  };
  if (a.chunked_rows < kNoChunks) UpdateByChunks(stream, a);
  if (a.chunked_rows > 1) {
    for_rows(PrepareKernel, a.key_heads);
    Update<void>(stream, a);
  }
  for_rows(NormKernel<Out>, a.value_heads);
}

}  // namespace

void GatedDelta(Stream& stream, const StepView& step, TableId table, int64_t list,
                const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                const GatedDeltaInputs& in, const MatrixView& convolved, const MatrixView& out) {
  CheckGatedDelta(shape, weights, in, out);
  LC_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBF16);
  LC_CHECK(convolved.dtype == DType::kF32 && convolved.rows == out.rows &&
               convolved.cols == shape.channels(),
           "convolved [{}, {}]", convolved.rows, convolved.cols);
  LC_CHECK(step.max_rows >= 1 && list >= 0);
  // What the kernels' grids and 32-bit numbers of rows and columns hold.
  constexpr int64_t kMostBlocks = 65535;
  LC_CHECK(step.capacity <= kMostBlocks && shape.value_heads <= kMostBlocks &&
           shape.channels() < (int64_t{1} << 24) &&
           out.rows * shape.value_heads < std::numeric_limits<int32_t>::max() - kRowWarps);
  if (out.rows == 0 || step.capacity == 0) return;
  const States states{step, table, list};
  const auto rows = static_cast<int32_t>(out.rows);
  CudaStream& cuda = AsCuda(stream);
  const bool single_rows = step.max_rows == 1;
  Convolve(cuda,
           {.states = states,
            .qkv = Rows<const float>(in.qkv),
            .convolved = Rows<float>(convolved),
            .filter = weights.filter,
            .channels = static_cast<int32_t>(shape.channels()),
            .taps = static_cast<int32_t>(shape.taps),
            .rows = rows},
           single_rows);
  const DeltaArguments a{.states = states,
                         .convolved = Rows<float>(convolved),
                         .gate = Rows<const float>(in.gate),
                         .rate = Rows<float>(in.rate),
                         .step = Rows<float>(in.step),
                         .scratch = Rows<float>(in.qkv),
                         .log_rate = weights.log_rate,
                         .rate_bias = weights.rate_bias,
                         .norm = weights.norm,
                         .norm_eps = weights.norm_eps,
                         .query_scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim)),
                         .history_floats = shape.history_floats(),
                         .key_heads = static_cast<int32_t>(shape.key_heads),
                         .value_heads = static_cast<int32_t>(shape.value_heads),
                         .group = static_cast<int32_t>(shape.value_heads / shape.key_heads),
                         .key_dim = static_cast<int32_t>(shape.key_dim),
                         .value_dim = static_cast<int32_t>(shape.value_dim),
                         .tiled = shape.tiled,
                         .chunked_rows = ChunkedRows(cuda, step, shape, in.qkv, convolved, out),
                         .out = out.data,
                         .out_stride = out.stride};
  if (out.dtype == DType::kF32) {
    UpdateAndNorm<float>(cuda, a, rows, single_rows);
  } else {
    UpdateAndNorm<__nv_bfloat16>(cuda, a, rows, single_rows);
  }
}

}  // namespace litecache::ops::cuda
