#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/rows/append_rows_cuda.h"
#include "ops/rows/encode_rows.cuh"
#include "ops/rows/paged_rows.cuh"
#include "ops/rows/rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

// One warp per row: it reads the row into shared memory by 16-byte loads, and writes 16-byte pieces
// of the other format from there.
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

__device__ float DecodeFp8(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  float value = __uint_as_float((magnitude << 20) + (120u << 23));
  if (magnitude < 8) {
    value = __fsub_rn(value, 0x1p-7f);
    value = __fadd_rn(value, value);
  }
  return __uint_as_float(__float_as_uint(value) | (code & 0x80u) << 24);
}

// Sizes in bytes: a part's codes, and its groups' minima and steps. d is a multiple of 4.
struct Int4Layout {
  int codes, scales;
  __device__ explicit Int4Layout(int d)
      : codes(d / 2),
        scales((d + static_cast<int>(kInt4Group) - 1) / static_cast<int>(kInt4Group) * 4) {}
};

// Element i (K first, then V) of a row in shared memory.
__device__ float Element(RowEncoding encoding, const std::byte* row, int d, int i) {
  if (encoding == RowEncoding::kBF16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
  }
  if (encoding == RowEncoding::kF32) return reinterpret_cast<const float*>(row)[i];
  if (encoding == RowEncoding::kInt4) {
    const Int4Layout at(d);
    const int part = i < d ? 0 : 1, j = i - part * d;
    const auto byte = static_cast<int>(row[part * at.codes + j / 2]);
    const auto* group = reinterpret_cast<const __half*>(row + 2 * at.codes + part * at.scales) +
                        j / static_cast<int>(kInt4Group) * 2;
    const auto code = static_cast<float>(j % 2 == 0 ? byte & 15 : byte >> 4);
    return __fmaf_rn(code, __half2float(group[1]), __half2float(group[0]));
  }
  const float scale = *reinterpret_cast<const float*>(row + 2 * d + (i < d ? 0 : 4));
  const auto code = static_cast<uint8_t>(row[i]);
  return __fmul_rn(encoding == RowEncoding::kFp8 ? DecodeFp8(code)
                                                 : static_cast<float>(static_cast<int8_t>(code)),
                   scale);
}

// Copies a row by a warp: in 16-byte words if the row is a multiple of 16 bytes, otherwise in
// 4-byte words.
__device__ void CopyBytes(const std::byte* source, std::byte* target, int bytes) {
  const int lane = threadIdx.x % 32;
  if (bytes % 16 == 0) {
    for (int i = lane * 16; i < bytes; i += 32 * 16) {
      *reinterpret_cast<int4*>(target + i) = *reinterpret_cast<const int4*>(source + i);
    }
  } else {
    for (int i = lane * 4; i < bytes; i += 32 * 4) {
      *reinterpret_cast<int32_t*>(target + i) = *reinterpret_cast<const int32_t*>(source + i);
    }
  }
}

// Bytes [begin, begin + kBytes) of the row in format `to`, converted from `row` in shared memory in
// format `from`.
template <int kBytes>
__device__ void EncodePiece(RowEncoding from, const std::byte* row, RowEncoding to, int d,
                            const float* scales, int begin, void* piece) {
  if (to == RowEncoding::kBF16) {
    auto* out = static_cast<__nv_bfloat16*>(piece);
    for (int i = 0; i < kBytes / 2; ++i) {
      out[i] = __float2bfloat16_rn(Element(from, row, d, begin / 2 + i));
    }
  } else if (to == RowEncoding::kF32) {
    auto* out = static_cast<float*>(piece);
    for (int i = 0; i < kBytes / 4; ++i) out[i] = Element(from, row, d, begin / 4 + i);
  } else {
    auto* out = static_cast<uint8_t*>(piece);
    for (int i = 0; i < kBytes; ++i) {
      const int at = begin + i;
      if (at >= 2 * d) {  // the scales, and zeros behind them
        const int byte = at - 2 * d;
        out[i] = byte < 8 ? __float_as_uint(scales[byte / 4]) >> (byte % 4 * 8) & 0xff : 0;
        continue;
      }
      out[i] = EncodeCode(to, Element(from, row, d, at), scales[at < d ? 0 : 1]);
    }
  }
}

// A row in f32, and one in 4 bits, for each warp of a block, in its dynamic shared memory.
struct RowBuffers {
  int32_t row_bytes, packed_bytes;  // whole words of 16

  explicit RowBuffers(int64_t d)
      : row_bytes(Words(RowFormat{RowEncoding::kF32, d}) + 16),  // or codes with their scales
        packed_bytes(Words(RowFormat{RowEncoding::kInt4, d})) {}
  size_t bytes() const { return kWarps * static_cast<size_t>(row_bytes + packed_bytes); }

  __device__ std::byte* Mine() const {
    extern __shared__ int4 row_buffers[];
    return reinterpret_cast<std::byte*>(row_buffers) +
           threadIdx.x / 32 * (row_bytes + packed_bytes);
  }
  __device__ std::byte* MyPacked() const { return Mine() + row_bytes; }

 private:
  static int32_t Words(const RowFormat& format) {
    return static_cast<int32_t>((format.row_bytes() + 15) / 16 * 16);
  }
};

// Converts the row to 4 bits, by a warp, with the arithmetic of common/convert_rows_cpu.cc. A lane
// has two values of a group.
__device__ void PackInt4(RowEncoding from, const std::byte* row, int d, std::byte* packed) {
  constexpr float kMost = 65504;
  constexpr int kGroup = static_cast<int>(kInt4Group);
  static_assert(kGroup == 64);
  const Int4Layout at(d);
  const int lane = threadIdx.x % 32;
  for (int part = 0; part < 2; ++part) {
    for (int first = 0; first < d; first += kGroup) {
      const int j = first + 2 * lane;
      const bool has = j < d;  // and the next one: d is even
      float value[2] = {0, 0}, low = kMost, high = -kMost;
      bool nan = false;
      if (has) {
        for (int i = 0; i < 2; ++i) {
          const float x = Element(from, row, d, part * d + j + i);
          nan |= isnan(x);
          value[i] = fmaxf(-kMost, fminf(x, kMost));
          low = fminf(low, value[i]);
          high = fmaxf(high, value[i]);
        }
      }
      for (int step = 16; step > 0; step /= 2) {
        low = fminf(low, __shfl_xor_sync(0xffffffffu, low, step));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
      }
      if (__any_sync(0xffffffffu, nan)) low = high = __uint_as_float(0x7fc00000u);
      const __half minimum = __float2half_rn(low);
      const __half step = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), 15.0f));
      if (lane == 0) {
        auto* group = reinterpret_cast<__half*>(packed + 2 * at.codes + part * at.scales) +
                      first / kGroup * 2;
        group[0] = minimum;
        group[1] = step;
      }
      if (!has) continue;
      int code = 0;
      const float width = __half2float(step);
      if (width > 0) {
        for (int i = 0; i < 2; ++i) {
          const float exact = __fdiv_rn(__fsub_rn(value[i], __half2float(minimum)), width);
          code |= __float2int_rn(fmaxf(0.0f, fminf(exact, 15.0f))) << (4 * i);
        }
      }
      packed[part * at.codes + j / 2] = static_cast<std::byte>(code);
    }
  }
  __syncwarp();
}

// Writes the row in shared memory to `target`, by a warp; also its scales if they are kept apart
// (otherwise null).
__device__ void WriteRow(RowEncoding from, const RowBuffers& buffers, RowEncoding to, int d,
                         int row_bytes, std::byte* target, float* scales_apart) {
  const std::byte* row = buffers.Mine();
  if (to == RowEncoding::kInt4) {
    PackInt4(from, row, d, buffers.MyPacked());
    CopyBytes(buffers.MyPacked(), target, row_bytes);
    return;
  }
  float scales[2] = {0, 0};
  if (to == RowEncoding::kFp8 || to == RowEncoding::kInt8) {
    for (int part = 0; part < 2; ++part) {
      scales[part] = PartScale(to, d, [&](int i) { return Element(from, row, d, part * d + i); });
    }
  }
  const int lane = threadIdx.x % 32;
  if (scales_apart != nullptr && lane < 2) scales_apart[lane] = lane == 0 ? scales[0] : scales[1];
  if (row_bytes % 16 == 0) {
    for (int i = lane * 16; i < row_bytes; i += 32 * 16) {
      int4 piece;
      EncodePiece<16>(from, row, to, d, scales, i, &piece);
      *reinterpret_cast<int4*>(target + i) = piece;
    }
  } else {
    for (int i = lane * 4; i < row_bytes; i += 32 * 4) {
      int32_t piece;
      EncodePiece<4>(from, row, to, d, scales, i, &piece);
      *reinterpret_cast<int32_t*>(target + i) = piece;
    }
  }
}

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
