#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/rows/append_rows_cuda.h"
#include "ops/rows/convert_rows.cuh"
#include "ops/rows/paged_rows.cuh"
#include "ops/rows/rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    AppendRowsKernel(StepView step, int32_t kv_heads, TableAccess access, const float* k,
                     int64_t k_stride, const float* v, int64_t v_stride, int32_t rows,
                     RowBuffers buffers) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int32_t item = static_cast<int32_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int32_t row = item / kv_heads, head = item % kv_heads;
  if (row >= rows) return;
  const int32_t list = access.table.list_of_head[head];
  if (list < 0) return;
  const int32_t index = SequenceOfRow(step, row);
  if (index < 0) return;
  const StepSequence& sequence = step.sequences[index];
  const auto d = static_cast<int32_t>(access.table.format.head_dim);
  auto* staged = reinterpret_cast<float*>(buffers.Mine());
  for (int i = threadIdx.x % 32; i < d; i += 32) {
    staged[i] = k[row * k_stride + head * d + i];
    staged[d + i] = v[row * v_stride + head * d + i];
  }
  __syncwarp();
  const int32_t token = sequence.past + row - sequence.first_row;
  const RowList target = access.List(sequence, list);
  WriteRow(RowEncoding::kF32, buffers, access.table.format.encoding, d, access.row_bytes,
           target.Row(access.RowOf(token)), target.Scales(access.RowOf(token)));
}

struct TokenRange {
  int32_t begin = 0, end = 0;
};
__device__ TokenRange TokensOf(const StepSequence& sequence, const RowRange& range) {
  switch (range.kind) {
    case RowRange::kPast:
      return {0, sequence.past};
    case RowRange::kLeaving:
      return {sequence.stored, sequence.past + sequence.rows - range.recent};
    case RowRange::kRing:
      return {sequence.stored, sequence.past};
    case RowRange::kNew:
      break;
  }
  return {sequence.past, sequence.past + sequence.rows};
}

__global__ void __launch_bounds__(kThreads)
    CopyRowsKernel(StepView step, TableAccess from, TableAccess to, RowRange range,
                   RowBuffers buffers) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const auto head = static_cast<int32_t>(blockIdx.y), index = static_cast<int32_t>(blockIdx.z);
  if (index >= *step.count) return;
  const int32_t from_list = from.table.list_of_head[head], to_list = to.table.list_of_head[head];
  if (from_list < 0 || to_list < 0) return;
  const StepSequence& sequence = step.sequences[index];
  const auto [begin, end] = TokensOf(sequence, range);
  const RowList source = from.List(sequence, from_list), target = to.List(sequence, to_list);
  const RowEncoding encoding = from.table.format.encoding;
  const auto d = static_cast<int32_t>(from.table.format.head_dim);
  for (int32_t t = begin + static_cast<int32_t>(blockIdx.x) * kWarps + threadIdx.x / 32; t < end;
       t += static_cast<int32_t>(gridDim.x) * kWarps) {
    const std::byte* row = source.Row(from.RowOf(t));
    std::byte* written = target.Row(to.RowOf(t));
    if (encoding == to.table.format.encoding) {
      CopyBytes(row, written, from.row_bytes);
      continue;
    }
    CopyBytes(row, buffers.Mine(), from.row_bytes);
    const float* scales = source.Scales(from.RowOf(t));
    if (scales != nullptr && threadIdx.x % 32 < 2) {
      reinterpret_cast<float*>(buffers.Mine() + from.row_bytes)[threadIdx.x % 32] =
          scales[threadIdx.x % 32];
    }
    __syncwarp();
    WriteRow(encoding, buffers, to.table.format.encoding, d, to.row_bytes, written,
             target.Scales(to.RowOf(t)));
    __syncwarp();
  }
}

// Copies rows between tables of one format with few blocks of many threads: to use the link, bytes
// must be in flight, which does not take many SMs. All warps share one list of pieces, head after
// head, as in pull_rows_cuda.cu. Loads bypass the L1 cache, as there.
constexpr int kLinkThreads = 1024;
constexpr int kPieceRows = 16;
constexpr int kInFlight = 4;  // loads that a lane has in flight

template <typename Unit>
__global__ void __launch_bounds__(kLinkThreads)
    LinkRowsKernel(StepView step, int32_t kv_heads, TableAccess from, TableAccess to,
                   RowRange range) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t warps = gridDim.x * (kLinkThreads / 32);
  const auto row_units = static_cast<int32_t>(from.row_bytes / sizeof(Unit));
  int32_t first = threadIdx.x / 32 * gridDim.x + blockIdx.x;  // the warp's first piece
  const int32_t sequences = *step.count;
  for (int32_t index = 0; index < sequences; ++index) {
    const StepSequence& sequence = step.sequences[index];
    const auto [begin, end] = TokensOf(sequence, range);
    if (begin >= end) continue;
    const int32_t pieces = (end - begin + kPieceRows - 1) / kPieceRows;
    for (int32_t head = 0; head < kv_heads; ++head) {
      const int32_t from_list = from.table.list_of_head[head];
      const int32_t to_list = to.table.list_of_head[head];
      if (from_list < 0 || to_list < 0) continue;
      const RowList source = from.List(sequence, from_list), target = to.List(sequence, to_list);
      int32_t piece = first;
      for (; piece < pieces; piece += warps) {
        const int32_t token = begin + piece * kPieceRows;
        const int32_t units = min(kPieceRows, end - token) * row_units;
        for (int32_t base = lane; base < units; base += 32 * kInFlight) {
          Unit value[kInFlight];
#pragma unroll
          for (int u = 0; u < kInFlight; ++u) {
            const int32_t unit = base + 32 * u;
            if (unit >= units) continue;
            const int32_t row = unit / row_units;
            value[u] = __ldcg(reinterpret_cast<const Unit*>(source.Row(from.RowOf(token + row))) +
                              (unit - row * row_units));
          }
#pragma unroll
          for (int u = 0; u < kInFlight; ++u) {
            const int32_t unit = base + 32 * u;
            if (unit >= units) continue;
            const int32_t row = unit / row_units;
            reinterpret_cast<Unit*>(target.Row(to.RowOf(token + row)))[unit - row * row_units] =
                value[u];
          }
        }
      }
      first = piece - pieces;
    }
  }
}

bool Serves(const RowTable& table) {
  return table.page_rows >= 1 && table.format.head_dim >= 2 && table.format.head_dim % 2 == 0 &&
         (table.format.encoding != RowEncoding::kInt4 || table.format.head_dim % 4 == 0) &&
         table.format.head_dim <= kMostHeadDimOnGpu && table.list_of_head != nullptr &&
         (!table.format.scales_apart || (table.format.has_scales() && table.scales_page_rows >= 1));
}

}  // namespace

void AppendRows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                const MatrixView& k, const MatrixView& v) {
  LC_CHECK(Serves(table), "rows of an even head_dim up to {} (4 bits: multiples of 4)",
           kMostHeadDimOnGpu);
  LC_CHECK(k.cols == kv_heads * table.format.head_dim && v.cols == k.cols && k.rows == v.rows);
  if (table.lists == 0 || k.rows == 0) return;
  if (AppendsBf16(table.format) && AppendsFrom(k) && AppendsFrom(v)) {
    AppendBf16Rows(stream, step, kv_heads, table, k, v);
    return;
  }
  LC_CHECK(k.dtype == DType::kF32 && v.dtype == DType::kF32);
  const int64_t blocks = (k.rows * kv_heads + kWarps - 1) / kWarps;
  const RowBuffers buffers(table.format.head_dim);
  LaunchOverlapping(AsCuda(stream), AppendRowsKernel, static_cast<unsigned>(blocks), kThreads,
                    buffers.bytes(), step, static_cast<int32_t>(kv_heads), TableAccess(table),
                    k.Row<const float>(0), k.stride, v.Row<const float>(0), v.stride,
                    static_cast<int32_t>(k.rows), buffers);
}

void CopyRows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& from,
              const RowTable& to, const RowRange& range, int32_t sms) {
  LC_CHECK(Serves(from) && Serves(to), "rows of an even head_dim up to {}", kMostHeadDimOnGpu);
  LC_CHECK(from.format.head_dim == to.format.head_dim);
  LC_CHECK(from.format.encoding != to.format.encoding ||
               (!from.format.scales_apart && !to.format.scales_apart),
           "rows whose scales are apart are expanded or made, not copied");
  if (from.lists == 0 || to.lists == 0 || step.capacity == 0) return;
  if (sms > 0 && from.format.encoding == to.format.encoding && from.format.row_bytes() % 4 == 0) {
    const auto kernel =
        from.format.row_bytes() % 16 == 0 ? LinkRowsKernel<uint4> : LinkRowsKernel<uint32_t>;
    kernel<<<static_cast<unsigned>(sms), kLinkThreads, 0, AsCuda(stream).handle()>>>(
        step, static_cast<int32_t>(kv_heads), TableAccess(from), TableAccess(to), range);
    LC_CUDA_LAUNCHED();
    return;
  }
  // Blocks stride over the tokens, so these are estimates of their number, not limits.
  int64_t tokens = step.max_context;
  if (range.kind == RowRange::kLeaving || range.kind == RowRange::kNew) tokens = step.max_rows;
  if (range.kind == RowRange::kRing && from.ring > 0) tokens = from.ring;
  const int64_t most = sms > 0 ? 4 * sms : 1024;
  const int64_t blocks =
      std::clamp<int64_t>((tokens + kWarps - 1) / kWarps, 1, std::max<int64_t>(most / kv_heads, 1));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(kv_heads),
                  static_cast<unsigned>(step.capacity));
  const RowBuffers buffers(from.format.head_dim);
  LaunchOverlapping(AsCuda(stream), CopyRowsKernel, grid, kThreads, buffers.bytes(), step,
                    TableAccess(from), TableAccess(to), range, buffers);
}

}  // namespace litecache::ops::cuda
