// Rows from the store, or from other slots, into slots.
#include <cuda_bf16.h>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/lite_pair.cuh"
#include "ops/cuda/litecache.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kInFlight = 4;  // loads a lane has under way

// Value of a code, as the CPU's conversion has it.
__device__ __forceinline__ float Fp8Value(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float normal = __uint_as_float((magnitude << 20) + (120u << 23));
  const float above_one = normal - 0x1p-7f;
  const float value = magnitude < 8 ? above_one + above_one : normal;
  return __uint_as_float(__float_as_uint(value) | (code & 0x80) << 24);
}
__device__ __forceinline__ float CodeValue(RowEncoding encoding, uint32_t code) {
  return encoding == RowEncoding::kFp8 ? Fp8Value(code)
                                       : static_cast<float>(static_cast<int8_t>(code));
}

// Loads pass by the L1 cache (ld.global.cg): the rows are read once, and what earlier kernels wrote
// to the store is in no L1 that this one could find stale.
//
// A warp copies `rows` rows, source(i) to target(i), several loads of a lane in flight.
template <typename Unit, class Source, class Target>
__device__ __forceinline__ void CopyPlain(int32_t rows, int32_t row_units, const Source& source,
                                          const Target& target) {
  const int32_t lane = threadIdx.x % 32, units = rows * row_units;
  for (int32_t base = lane; base < units; base += 32 * kInFlight) {
    Unit value[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int32_t unit = base + 32 * u;
      if (unit >= units) continue;
      const int32_t row = unit / row_units;
      value[u] = __ldcg(reinterpret_cast<const Unit*>(source(row)) + (unit - row * row_units));
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int32_t unit = base + 32 * u;
      if (unit >= units) continue;
      const int32_t row = unit / row_units;
      reinterpret_cast<Unit*>(target(row))[unit - row * row_units] = value[u];
    }
  }
}

__device__ __forceinline__ void StoreValue(std::byte* row, RowEncoding to, int32_t i, float value) {
  if (to == RowEncoding::kBF16) {
    reinterpret_cast<__nv_bfloat16*>(row)[i] = __float2bfloat16_rn(value);
  } else {
    reinterpret_cast<float*>(row)[i] = value;
  }
}

// Up to kInFlight quantized rows, expanded. head_dim a multiple of 16: a lane has 16 codes.
template <class Source, class Target>
__device__ __forceinline__ void ExpandRows(int32_t rows, const RowFormat& from, RowEncoding to,
                                           const Source& source, const Target& target) {
  const int32_t lane = threadIdx.x % 32;
  const auto d = static_cast<int32_t>(from.head_dim);
  if (d % 16 != 0) {
    for (int32_t r = 0; r < rows; ++r) {
      const std::byte* row = source(r);
      const auto* scales = reinterpret_cast<const unsigned char*>(row) + 2 * d;
      float scale[2];
      for (int part = 0; part < 2; ++part) {
        uint32_t bits = 0;  // where head_dim is odd the scales are not aligned
        for (int b = 0; b < 4; ++b) bits |= uint32_t{__ldcg(scales + 4 * part + b)} << 8 * b;
        scale[part] = __uint_as_float(bits);
      }
      for (int32_t i = lane; i < 2 * d; i += 32) {
        const uint32_t code = __ldcg(reinterpret_cast<const unsigned char*>(row) + i);
        StoreValue(target(r), to, i,
                   CodeValue(from.encoding, code) * (i < d ? scale[0] : scale[1]));
      }
    }
    return;
  }
  const bool has_codes = lane < 2 * d / 16;
  uint4 codes[kInFlight];
  float2 scales[kInFlight];
#pragma unroll
  for (int r = 0; r < kInFlight; ++r) {
    if (r >= rows || !has_codes) continue;
    const std::byte* row = source(r);
    codes[r] = __ldcg(reinterpret_cast<const uint4*>(row) + lane);
    scales[r] = __ldcg(reinterpret_cast<const float2*>(row + 2 * d));
  }
#pragma unroll
  for (int r = 0; r < kInFlight; ++r) {
    if (r >= rows || !has_codes) continue;
    const float scale = 16 * lane < d ? scales[r].x : scales[r].y;
    const uint32_t words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
    float value[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      value[i] = CodeValue(from.encoding, words[i / 4] >> 8 * (i % 4) & 0xff) * scale;
    }
    if (to == RowEncoding::kF32) {
      auto* out = reinterpret_cast<float4*>(target(r)) + 4 * lane;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[i] = {value[4 * i], value[4 * i + 1], value[4 * i + 2], value[4 * i + 3]};
      }
      continue;
    }
    uint32_t packed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t low = __bfloat16_as_ushort(__float2bfloat16_rn(value[2 * i]));
      const uint32_t high = __bfloat16_as_ushort(__float2bfloat16_rn(value[2 * i + 1]));
      packed[i] = low | high << 16;
    }
    auto* out = reinterpret_cast<uint4*>(target(r)) + 2 * lane;
    out[0] = {packed[0], packed[1], packed[2], packed[3]};
    out[1] = {packed[4], packed[5], packed[6], packed[7]};
  }
}

// Rows a warp takes at a time: as many as its lanes have loads for.
__device__ __forceinline__ int32_t RowsAtOnce(const RowFormat& from) {
  if (IsQuantized(from.encoding)) return kInFlight;
  const auto bytes = static_cast<int32_t>(RowBytes(from));
  return max(1, 32 * kInFlight * 16 / bytes);
}

// `rows` <= RowsAtOnce(from) rows, by a warp; formats are equal or `from` is quantized.
template <class Source, class Target>
__device__ __forceinline__ void MoveSome(int32_t rows, const RowFormat& from, const RowFormat& to,
                                         const Source& source, const Target& target) {
  if (from.encoding != to.encoding) {
    ExpandRows(rows, from, to.encoding, source, target);
    return;
  }
  const auto bytes = static_cast<int32_t>(RowBytes(from));
  if (bytes % 16 == 0) {
    CopyPlain<uint4>(rows, bytes / 16, source, target);
  } else if (bytes % 4 == 0) {
    CopyPlain<uint32_t>(rows, bytes / 4, source, target);
  } else {
    CopyPlain<unsigned short>(rows, bytes / 2, source, target);
  }
}

// All warps of the grid share one list of pieces, pair after pair, so that the rows of one head are
// read one after another: scattered reads starve the link and everything else (hardware.md's
// measure: a third of its rate).
__global__ void __launch_bounds__(kThreads, 1)
    PullRowsKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteShape shape,
                   const __grid_constant__ LiteLayer layer) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t warps = gridDim.x * kWarps;
  // Warp w of block b is the (w * blocks + b)-th: small lists spread over the blocks.
  const int32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const int32_t at_once = RowsAtOnce(layer.store.format);
  const int32_t pairs = *step.count * shape.kv_heads;
  int32_t first = warp;  // of this warp's pieces, counted from the pair's first
  for (int32_t base = 0; base < pairs; base += 32) {
    int32_t of_lane = 0;
    if (base + lane < pairs && layer.refresh[base + lane] == 1) {
      of_lane = layer.moved_count[base + lane];
    }
    for (unsigned busy = __ballot_sync(kFullMask, of_lane > 0); busy != 0; busy &= busy - 1) {
      const int from_lane = __ffs(static_cast<int>(busy)) - 1;
      const int32_t count = __shfl_sync(kFullMask, of_lane, from_lane);
      const int32_t pieces = (count + at_once - 1) / at_once;
      if (first >= pieces) {
        first -= pieces;
        continue;
      }
      const int32_t pair = base + from_lane;
      const int32_t head = pair % shape.kv_heads;
      const StepSequence& s = step.sequences[pair / shape.kv_heads];
      const int32_t stored_list = layer.store.list_of_head[head];
      const int32_t slots_list = layer.slots.list_of_head[head];
      const int32_t* positions = layer.moved_positions + int64_t{pair} * shape.max_rows;
      const int32_t* slots = layer.moved_slots + int64_t{pair} * shape.max_rows;
      int32_t piece = first;
      for (; piece < pieces; piece += warps) {
        const int32_t row = piece * at_once;
        MoveSome(
            min(at_once, count - row), layer.store.format, layer.slots.format,
            [&](int32_t i) { return RowOf(s, layer.store, stored_list, positions[row + i]); },
            [&](int32_t i) { return RowOf(s, layer.slots, slots_list, slots[row + i]); });
      }
      first = piece - pieces;
    }
  }
}

// A warp a pair.
__global__ void MoveKeptKernel(const __grid_constant__ StepView step,
                               const __grid_constant__ LiteShape shape,
                               const __grid_constant__ LiteLayer layer) {
  const int32_t pair = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int32_t sequence = pair / shape.kv_heads, head = pair % shape.kv_heads;
  if (sequence >= *step.count) return;
  const int32_t list = layer.slots.list_of_head[head];
  // A head that is refreshed has its rows pulled.
  if (list < 0 || layer.refresh[pair] != 0 || layer.moved_count[pair] == 0) return;
  const StepSequence& s = step.sequences[sequence];
  const int64_t room = int64_t{pair} * shape.max_rows;
  const int32_t from = FixedSlot(shape, layer.moved_positions[room]);
  const int32_t to = layer.moved_slots[room];
  MoveSome(
      1, layer.slots.format, layer.slots.format,
      [&](int32_t) { return RowOf(s, layer.slots, list, from); },
      [&](int32_t) { return RowOf(s, layer.slots, list, to); });
}

// A block a pair.
__global__ void __launch_bounds__(kThreads, 1)
    FillFixedKernel(const __grid_constant__ StepView step, const __grid_constant__ LiteShape shape,
                    const __grid_constant__ LiteLayer layer, const int32_t* fill) {
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count || fill[sequence] == 0) return;
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t stored_list = layer.store.list_of_head[head];
  // Rows that are not stored are in their slots.
  const int32_t sink = max(0, min(SinkRows(shape, s.past), s.stored));
  const int32_t recent = RecentBegin(shape, s.past);
  const int32_t count = sink + max(0, s.stored - recent);
  const auto token = [&](int32_t i) { return i < sink ? i : recent + i - sink; };
  for (int32_t row = threadIdx.x / 32; row < count; row += kWarps) {
    MoveSome(
        1, layer.store.format, layer.slots.format,
        [&](int32_t) { return RowOf(s, layer.store, stored_list, token(row)); },
        [&](int32_t) { return RowOf(s, layer.slots, list, FixedSlot(shape, token(row))); });
  }
}

bool Quantized(const RowFormat& format) { return format.encoding >= RowEncoding::kFp8; }

void CheckFormats(const LiteLayer& layer) {
  const RowFormat &from = layer.store.format, &to = layer.slots.format;
  LC_CHECK(from.head_dim == to.head_dim && from.head_dim >= 1 && from.head_dim <= 256,
           "head_dim {} and {}", from.head_dim, to.head_dim);
  LC_CHECK(from.encoding == to.encoding || (Quantized(from) && !Quantized(to)),
           "rows are copied, or expanded from fp8 or int8");
}

}  // namespace

void PullRows(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
              int32_t blocks) {
  CheckFormats(layer);
  LC_CHECK(blocks >= 1, "{} blocks", blocks);
  PullRowsKernel<<<blocks, kThreads, 0, AsCuda(stream).handle()>>>(step, shape, layer);
  LC_CUDA_LAUNCHED();
}

void MoveKept(Stream& stream, const StepView& step, const LiteShape& shape,
              const LiteLayer& layer) {
  constexpr int kPairs = 4;  // a block
  const int pairs = step.capacity * shape.kv_heads;
  MoveKeptKernel<<<(pairs + kPairs - 1) / kPairs, 32 * kPairs, 0, AsCuda(stream).handle()>>>(
      step, shape, layer);
  LC_CUDA_LAUNCHED();
}

void FillFixed(Stream& stream, const StepView& step, const LiteShape& shape, const LiteLayer& layer,
               const int32_t* fill) {
  CheckFormats(layer);
  const dim3 grid(static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity));
  FillFixedKernel<<<grid, kThreads, 0, AsCuda(stream).handle()>>>(step, shape, layer, fill);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
