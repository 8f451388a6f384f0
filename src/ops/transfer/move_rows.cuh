// Copies or dequantizes rows by a warp: shared by all transfers into slots.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "ops/common/int4_rows.cuh"
#include "ops/common/row_format.h"
#include "ops/slots/litecache_pair.cuh"

namespace litecache::ops::cuda {

constexpr int kInFlight = 4;  // loads that a lane has in flight

// The value of code `byte` of four, as in the CPU's conversion.
template <RowEncoding kEncoding>
__device__ __forceinline__ float CodeValue(uint32_t codes, int byte) {
  if constexpr (kEncoding == RowEncoding::kInt8) {
    return static_cast<float>(static_cast<int8_t>(codes >> 8 * byte & 0xff));
  }
  // With exponent and mantissa moved to f32's bits, the result is exactly the value times 2^-120;
  // subnormal codes become subnormal f32 numbers. Four instructions; the pull has 16 codes per lane
  // to convert beside its loads.
  const auto top = static_cast<int32_t>(codes << (24 - 8 * byte));
  return __uint_as_float(static_cast<uint32_t>(top >> 4) & 0x87f00000u) * 0x1p120f;
}

// Loads bypass the L1 cache (ld.global.cg): the rows are read once, and no L1 can hold stale data
// of the store that earlier kernels wrote.
//
// A warp copies `rows` rows, source(i) to target(i), with several loads of a lane in flight.
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

// Rows of 8-bit codes that the lanes of a warp load at once, 16 codes each.
__device__ __forceinline__ int32_t CodeRowsABatch(int32_t d) {
  return d % 16 == 0 && 32 % (d / 8) == 0 ? 32 / (d / 8) : 1;
}

// Dequantizes 16 codes with a part's scale to out[0..15].
template <RowEncoding kEncoding>
__device__ __forceinline__ void ExpandCodes(const uint4& codes, float scale, RowEncoding to,
                                            std::byte* row, int32_t part) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  float value[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) value[i] = CodeValue<kEncoding>(words[i / 4], i % 4) * scale;
  if (to == RowEncoding::kF32) {
    auto* out = reinterpret_cast<float4*>(row) + 4 * part;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = {value[4 * i], value[4 * i + 1], value[4 * i + 2], value[4 * i + 3]};
    }
    return;
  }
  uint32_t packed[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
    packed[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  auto* out = reinterpret_cast<uint4*>(row) + 2 * part;
  out[0] = {packed[0], packed[1], packed[2], packed[3]};
  out[1] = {packed[4], packed[5], packed[6], packed[7]};
}

// Dequantizes up to kBatches batches of rows whose scales are apart; scales(i): row i's. head_dim
// is a multiple of 16: a lane has 16 codes, of a head_dim above 256 in two turns.
template <RowEncoding kEncoding, int kBatches, class Source, class Scales, class Target>
__device__ __forceinline__ void ExpandRows(int32_t rows, int32_t d, RowEncoding to,
                                           const Source& source, const Scales& scales,
                                           const Target& target) {
  const int32_t lane = threadIdx.x % 32;
  if (d % 16 != 0) {
    for (int32_t r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const unsigned char*>(source(r));
      const float2 scale = scales(r);
      for (int32_t i = lane; i < 2 * d; i += 32) {
        const uint32_t code = __ldcg(row + i);
        StoreValue(target(r), to, i, CodeValue<kEncoding>(code, 0) * (i < d ? scale.x : scale.y));
      }
    }
    return;
  }
  const int32_t batch = CodeRowsABatch(d), lanes = 2 * d / 16;
  const int32_t own_row = lane / lanes;
  if (own_row >= batch) return;
#pragma unroll 1
  for (int32_t part = lane - own_row * lanes; part < lanes; part += 32) {
    uint4 codes[kBatches];
#pragma unroll
    for (int r = 0; r < kBatches; ++r) {
      if (r * batch + own_row >= rows) continue;
      codes[r] = __ldcg(reinterpret_cast<const uint4*>(source(r * batch + own_row)) + part);
    }
#pragma unroll
    for (int r = 0; r < kBatches; ++r) {
      const int32_t row = r * batch + own_row;
      if (row >= rows) continue;
      const float2 scale = scales(row);
      ExpandCodes<kEncoding>(codes[r], 16 * part < d ? scale.x : scale.y, to, target(row), part);
    }
  }
}

// Copies up to kBatches batches of rows whose scales are apart to targets from CodePage::Codes, in
// the code order of cached slots. head_dim is a multiple of 16: lanes as in ExpandRows.
template <int kBatches, class Source, class Target>
__device__ __forceinline__ void CopyCodes(int32_t rows, int32_t d, const Source& source,
                                          const Target& target) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t batch = CodeRowsABatch(d), lanes = 2 * d / 16;
  const int32_t own_row = lane / lanes;
  if (own_row >= batch) return;
#pragma unroll 1
  for (int32_t part = lane - own_row * lanes; part < lanes; part += 32) {
    uint4 codes[kBatches];
#pragma unroll
    for (int r = 0; r < kBatches; ++r) {
      const int32_t row = r * batch + own_row;
      if (row < rows) codes[r] = __ldcg(reinterpret_cast<const uint4*>(source(row)) + part);
    }
    const bool key = 16 * part < d;
#pragma unroll
    for (int r = 0; r < kBatches; ++r) {
      const int32_t row = r * batch + own_row;
      if (row >= rows) continue;
      *CodeChunk(target(row), part) = key ? OrderKeyCodes(codes[r]) : OrderValueCodes(codes[r]);
    }
  }
}

// Dequantizes up to kInFlight rows in 4 bits: a lane has 8 codes, of one group.
template <class Source, class Target>
__device__ __forceinline__ void ExpandInt4(int32_t rows, int32_t d, RowEncoding to,
                                           const Source& source, const Target& target) {
  const int32_t lane = threadIdx.x % 32;
  if (d % 8 != 0) {
    for (int32_t r = 0; r < rows; ++r) {
      const std::byte* row = source(r);
      for (int32_t i = lane; i < 2 * d; i += 32) {
        const int32_t part = i < d ? 0 : 1, c = i - part * d;
        const uint32_t pair =
            __ldcg(reinterpret_cast<const unsigned char*>(row) + part * (d / 2) + c / 2);
        const float2 range = Int4Range(row, d, part, c / static_cast<int32_t>(kInt4Group));
        StoreValue(target(r), to, i, Int4Value(c % 2 == 0 ? pair & 15 : pair >> 4, range));
      }
    }
    return;
  }
  for (int32_t first = 8 * lane; first < 2 * d; first += 8 * 32) {
    const int32_t part = first < d ? 0 : 1;
    const int32_t group = (first - part * d) / static_cast<int32_t>(kInt4Group);
    uint32_t codes[kInFlight];
    float2 ranges[kInFlight];
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      if (r >= rows) continue;
      const std::byte* row = source(r);
      codes[r] = __ldcg(reinterpret_cast<const uint32_t*>(row) + first / 8);
      ranges[r] = Int4Range(row, d, part, group);
    }
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      if (r >= rows) continue;
      float value[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = Int4Value(codes[r] >> 4 * i & 15, ranges[r]);
      if (to == RowEncoding::kF32) {
        auto* out = reinterpret_cast<float4*>(target(r)) + first / 4;
        out[0] = {value[0], value[1], value[2], value[3]};
        out[1] = {value[4], value[5], value[6], value[7]};
        continue;
      }
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = __bfloat16_as_ushort(__float2bfloat16_rn(value[2 * i]));
        const uint32_t high = __bfloat16_as_ushort(__float2bfloat16_rn(value[2 * i + 1]));
        packed[i] = low | high << 16;
      }
      reinterpret_cast<uint4*>(target(r))[first / 8] = {packed[0], packed[1], packed[2], packed[3]};
    }
  }
}

// Rows that a warp moves at a time: as many as its lanes have loads for.
__device__ __forceinline__ int32_t RowsAtOnce(const RowFormat& from) {
  if (from.encoding == RowEncoding::kInt4) return kInFlight;
  if (IsQuantized(from.encoding)) {
    return kInFlight * CodeRowsABatch(static_cast<int32_t>(from.head_dim));
  }
  const auto bytes = static_cast<int32_t>(RowBytes(from));
  return max(1, 32 * kInFlight * 16 / bytes);
}

// Moves `rows` <= RowsAtOnce(from) rows, by a warp; formats are equal or `from` is quantized.
// scales(i): row i's, if they are apart.
template <class Source, class Scales, class Target>
__device__ __forceinline__ void MoveSome(int32_t rows, const RowFormat& from, const RowFormat& to,
                                         const Source& source, const Scales& scales,
                                         const Target& target) {
  if (from.encoding != to.encoding) {
    const auto d = static_cast<int32_t>(from.head_dim);
    if (from.encoding == RowEncoding::kInt4) {
      ExpandInt4(rows, d, to.encoding, source, target);
    } else if (from.encoding == RowEncoding::kInt8) {
      ExpandRows<RowEncoding::kInt8, kInFlight>(rows, d, to.encoding, source, scales, target);
    } else {
      ExpandRows<RowEncoding::kFp8, kInFlight>(rows, d, to.encoding, source, scales, target);
    }
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

// The same for formats without scales.
template <class Source, class Target>
__device__ __forceinline__ void MoveSome(int32_t rows, const RowFormat& from, const RowFormat& to,
                                         const Source& source, const Target& target) {
  MoveSome(
      rows, from, to, source, [](int32_t) { return float2{}; }, target);
}

// Checks that a transfer supports the formats.
inline void CheckMove(const RowFormat& from, const RowFormat& to) {
  LC_CHECK(from.head_dim == to.head_dim && from.head_dim >= 1 && from.head_dim <= kMostHeadDimOnGpu,
           "head_dim {} and {}", from.head_dim, to.head_dim);
  LC_CHECK(from.encoding == to.encoding || (from.quantized() && !to.quantized()),
           "rows are copied, or expanded from a quantized format");
  LC_CHECK(from.scales_apart == (from.encoding != to.encoding && from.has_scales()),
           "rows with scales have them apart and are expanded");
  LC_CHECK(from.encoding != RowEncoding::kInt4 || from.head_dim % 2 == 0,
           "rows in 4 bits of an odd head_dim");
}

}  // namespace litecache::ops::cuda
