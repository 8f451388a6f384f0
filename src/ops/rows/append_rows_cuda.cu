#include <cuda_bf16.h>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/vectors.cuh"
#include "ops/rows/append_rows_cuda.h"
#include "ops/rows/paged_rows.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kPiece = 8;             // values, 16 bytes of a row
constexpr int kManyPieces = 4;        // that a lane has in flight if there are many rows
constexpr int64_t kManyRows = 32768;  // for one head: four times as many warps as run at once

// Reads eight values as bf16. They are read once.
__device__ uint4 ReadPiece(const float* p) {
  const float4 low = __ldcs(reinterpret_cast<const float4*>(p));
  const float4 high = __ldcs(reinterpret_cast<const float4*>(p) + 1);
  return {PackBf16(low.x, low.y), PackBf16(low.z, low.w), PackBf16(high.x, high.y),
          PackBf16(high.z, high.w)};
}
__device__ uint4 ReadPiece(const __nv_bfloat16* p) {
  return __ldcs(reinterpret_cast<const uint4*>(p));
}

// A warp handles some heads of a row of k and v: it loads all of them, and meanwhile looks up their
// targets.
template <typename K, typename V, int kPieces>
__global__ void __launch_bounds__(kThreads)
    AppendKernel(StepView step, int32_t kv_heads, int32_t warp_heads, Divider items_a_row,
                 Divider pieces_a_head, TableAccess access, const K* k, int64_t k_stride,
                 const V* v, int64_t v_stride, int32_t rows) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int32_t item = static_cast<int32_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int32_t row = items_a_row.Quotient(item);
  if (row >= rows) return;
  const int32_t lane = threadIdx.x % 32;
  const int32_t first_head = (item - row * static_cast<int32_t>(items_a_row.divisor)) * warp_heads;
  const auto per_head = static_cast<int32_t>(pieces_a_head.divisor);  // of K and V
  const int32_t pieces = min(warp_heads, kv_heads - first_head) * per_head;
  const int32_t d = per_head / 2 * kPiece;
  uint4 value[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int32_t piece = lane + 32 * i;
    if (piece >= pieces) break;
    const int32_t head = pieces_a_head.Quotient(piece), at = piece - head * per_head;
    const int64_t column = static_cast<int64_t>(first_head + head) * d;
    value[i] = at < per_head / 2 ? ReadPiece(k + row * k_stride + column + at * kPiece)
                                 : ReadPiece(v + row * v_stride + column + at * kPiece - d);
  }
  const int32_t index = SequenceOfRow(step, row);
  if (index < 0) return;
  const StepSequence& sequence = step.sequences[index];
  const int32_t token = access.RowOf(sequence.past + row - sequence.first_row);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int32_t piece = lane + 32 * i;
    if (piece >= pieces) break;
    const int32_t head = pieces_a_head.Quotient(piece), at = piece - head * per_head;
    const int32_t list = access.table.list_of_head[first_head + head];
    if (list < 0) continue;
    *reinterpret_cast<uint4*>(access.List(sequence, list).Row(token) + at * 16) = value[i];
  }
}

}  // namespace

bool AppendsFrom(const MatrixView& m) {
  return (m.dtype == DType::kF32 && Aligned(m, 4)) || (m.dtype == DType::kBF16 && Aligned(m, 8));
}

void AppendBf16Rows(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const MatrixView& k, const MatrixView& v) {
  LC_CHECK(AppendsBf16(table.format) && AppendsFrom(k) && AppendsFrom(v));
  const auto per_head = static_cast<int32_t>(table.format.head_dim / (kPiece / 2));
  const bool many = k.rows * kv_heads >= kManyRows || per_head > 64;
  const int32_t warp_pieces = 32 * (many ? kManyPieces : per_head > 32 ? 2 : 1);
  const int32_t warp_heads = warp_pieces / per_head;
  const auto heads = static_cast<int32_t>(kv_heads);
  const int32_t items_a_row = (heads + warp_heads - 1) / warp_heads;
  const int64_t blocks = (k.rows * items_a_row + kWarps - 1) / kWarps;
  const auto launch = [&](auto* keys, auto* values) {
    using K = std::remove_cv_t<std::remove_pointer_t<decltype(keys)>>;
    using V = std::remove_cv_t<std::remove_pointer_t<decltype(values)>>;
    const auto kernel = many               ? AppendKernel<K, V, kManyPieces>
                        : warp_pieces > 32 ? AppendKernel<K, V, 2>
                                           : AppendKernel<K, V, 1>;
    LaunchOverlapping(AsCuda(stream), kernel, static_cast<unsigned>(blocks), kThreads, 0, step,
                      heads, warp_heads, Divider(items_a_row), Divider(per_head),
                      TableAccess(table), keys, k.stride, values, v.stride,
                      static_cast<int32_t>(k.rows));
  };
  const auto with_values = [&](auto* keys) {
    if (v.dtype == DType::kF32) {
      launch(keys, v.Row<const float>(0));
    } else {
      launch(keys, static_cast<const __nv_bfloat16*>(v.data));
    }
  };
  if (k.dtype == DType::kF32) {
    with_values(k.Row<const float>(0));
  } else {
    with_values(static_cast<const __nv_bfloat16*>(k.data));
  }
}

}  // namespace litecache::ops::cuda
