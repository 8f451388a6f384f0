// Rows converted from one format to another, by a warp each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "ops/rows/encode_rows.cuh"
#include "ops/rows/paged_rows.cuh"

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

}  // namespace
}  // namespace litecache::ops::cuda
