// The phases of a tile of the ring kernel (gemv_ring_cuda.cu): where its rows are, x, the products,
// and the outputs.
#pragma once

#include "ops/common/shared_memory.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/common/vectors.cuh"
#include "ops/linear/gemv_parts.cuh"

namespace litecache::ops::cuda {
namespace ring {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 8;    // rows of the weights: outputs of one tensor core product
constexpr int kPart = 128;  // elements of the depth in a stage of a ring
constexpr int kDepth = 32;  // elements that a warp multiplies in a step
constexpr int kChunk = 8;   // elements of a lane: 16 bytes
constexpr int kStageBytes = kTile * kPart * 2;
constexpr int kMostStages = 12;
constexpr int kLeastStages = 5;  // fewer do not hide the memory's latency
// Padding of x's rows in shared memory, so that the chunks of one step are in different banks.
constexpr int kPadding = 64;

// Length of the queue of claimed tiles beyond the one being multiplied, which the copies may have
// reached.
constexpr int kQueue = 32;
// A queue entry must not be overwritten while an earlier tile needs it.
static_assert(1 + kMostStages - 1 + 2 < kQueue);
constexpr uint32_t kNoTile = 0x0f000000;

__host__ __device__ constexpr int SumsBytes(int rows) { return 2 * kWarps * rows * kTile * 4; }

// value = (*counter)++ if wanted, otherwise unchanged; asynchronous until value is used. An
// increment with a limit that is never reached rather than an addition: the compiler would combine
// a warp's additions into one and wait for its result at once, to distribute it.
__device__ inline void Claim(uint32_t* counter, bool wanted, uint32_t& value) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;\n"
      "}"
      : "+r"(value)
      : "l"(counter), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

// Addresses of this lane's rows of the tile from output `begin` on: lane / 16, + 2, + 4, + 6. A
// lane computes the address of one row and gets the others by shuffles. Beyond the last output its
// row is copied again and the result is dropped.
template <bool kGated>
__device__ __forceinline__ void FindRows(const GemvArguments& a, int32_t begin, int32_t end,
                                         int warp, int lane,
                                         const __nv_bfloat16* (&rows)[kTile / 2]) {
  constexpr int kUnits = kGated ? kTile / 2 : kTile;
  const int r = lane % kTile;
  const int32_t unit = min(begin + r % kUnits, end - 1);
  const GemvTarget& target = a.targets[kGated ? r / kUnits : TargetIndex(a, unit)];
  const __nv_bfloat16* const row =
      target.weight + (kGated ? unit : unit - target.first) * target.stride + warp * kPart;
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    const auto address = __shfl_sync(~0u, reinterpret_cast<uint64_t>(row), 2 * i + lane / 16);
    rows[i] = reinterpret_cast<const __nv_bfloat16*>(address) + lane % 16 * kChunk;
  }
}

// The offset of a lane's first chunk in a stage. In odd rows the halves of 128 bytes are exchanged,
// so that a step's chunks are in different banks.
__device__ __forceinline__ uint32_t PlaceInStage(int lane) {
  return static_cast<uint32_t>((lane / 16) * kPart * 2 + ((lane % 16 ^ ((lane / 16) << 2)) << 4));
}

// Copies a part of this lane's rows to a stage and moves the rows on to the warp's next part.
__device__ __forceinline__ void CopyStage(uint32_t to, const __nv_bfloat16* (&rows)[kTile / 2],
                                          bool in_depth) {
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    CopyChunkOnce(to + static_cast<uint32_t>(2 * i * kPart * 2), rows[i], in_depth);
    rows[i] += kWarps * kPart;
  }
}

// Copies this warp's parts of all rows of x to shared memory.
__device__ __forceinline__ void CopyX(const GemvArguments& a, int32_t pitch, int warp, int lane,
                                      int32_t own_parts, uint8_t* x_at) {
  const int chunk = lane % 16;
#pragma unroll 1
  for (int t = 0; t < a.rows; ++t) {
#pragma unroll 1
    for (int j = lane / 16; j < own_parts; j += 2) {
      const int32_t k = (warp + j * kWarps) * kPart + chunk * kChunk;
      CopyChunk(SharedAddress(x_at + t * pitch + k * 2), a.x + t * a.x_stride + k, k < a.depth);
    }
  }
}

// The output that a thread adds up and writes at a tile's end.
struct RingOutput {
  bool writes = false;
  int target = 0;
  int64_t at_y = 0;
  float bias = 0;
  float second = 0;  // y before, or the bias of target 1 (kGated)
};

// Loads what the result needs besides the sums, while they are computed.
template <bool kGated>
__device__ __forceinline__ RingOutput FindOutput(const GemvArguments& a, int32_t unit, int row,
                                                 bool writes) {
  RingOutput result{.writes = writes};
  if (!writes) return result;
  if constexpr (!kGated) result.target = TargetIndex(a, unit);
  const GemvTarget& target = a.targets[result.target];
  const int32_t output = kGated ? unit : unit - target.first;
  result.at_y = row * target.y_stride + output;
  if (target.bias != nullptr) result.bias = target.bias[output];
  if constexpr (kGated) {
    if (a.targets[1].bias != nullptr) result.second = a.targets[1].bias[output];
  } else {
    if (a.add) result.second = static_cast<const float*>(target.y)[result.at_y];
  }
  return result;
}

// Adds up the warps' sums [kWarps][rows][kTile] of an output and writes it.
template <bool kGated>
__device__ __forceinline__ void WriteOutput(const GemvArguments& a, const RingOutput& output,
                                            const float* sums, int row, int unit) {
  const auto total = [&](int column) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) value += sums[(i * a.rows + row) * kTile + column];
    return value;
  };
  float value = total(unit) + output.bias;
  if constexpr (kGated) {
    value = a.function(value, total(kTile / 2 + unit) + output.second);
  }
  const GemvTarget& target = a.targets[output.target];
  if (target.bf16_y) {
    static_cast<__nv_bfloat16*>(target.y)[output.at_y] = __float2bfloat16(value);
  } else {
    static_cast<float*>(target.y)[output.at_y] = !kGated && a.add ? output.second + value : value;
  }
}

// What a lane multiplies of a part: 8 rows of the weights, up to 16 of x.
struct RingOperands {
  static constexpr int kSteps = kPart / kDepth;
  uint4 weights[kSteps], low[kSteps], high[kSteps];

  // stage: this lane's row of the weights; k: the part's place in the warp's x.
  __device__ __forceinline__ void Load(const uint8_t* stage, int g, int q, const uint8_t* x0,
                                       const uint8_t* x8, int32_t k, bool has0, bool has8) {
    const uint4 zero = {0, 0, 0, 0};
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      const int32_t at = (k + u * kDepth) * 2;
      weights[u] = *reinterpret_cast<const uint4*>(stage + (((u * 4 + q) ^ ((g & 1) << 2)) << 4));
      low[u] = has0 ? *reinterpret_cast<const uint4*>(x0 + at) : zero;
      high[u] = has8 ? *reinterpret_cast<const uint4*>(x8 + at) : zero;
    }
  }

  __device__ __forceinline__ void MultiplyInto(float (&chains)[4][4]) const {
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      GemvMultiply(chains[u % 2], low[u].x, low[u].y, high[u].x, high[u].y, weights[u].x,
                   weights[u].y);
      GemvMultiply(chains[u % 2 + 2], low[u].z, low[u].w, high[u].z, high[u].w, weights[u].z,
                   weights[u].w);
    }
  }
};

// Lane 4 g + q has sums of rows g (0, 1) and g + 8 (2, 3), outputs 2q and 2q + 1. sums: the warp's
// [rows][kTile].
__device__ __forceinline__ void StoreSums(const float (&chains)[4][4], float* sums, int g, int q,
                                          bool has0, bool has8) {
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] = (chains[0][i] + chains[1][i]) + (chains[2][i] + chains[3][i]);
  }
  if (has0) *reinterpret_cast<float2*>(sums + g * kTile + 2 * q) = {sum[0], sum[1]};
  if (has8) *reinterpret_cast<float2*>(sums + (g + 8) * kTile + 2 * q) = {sum[2], sum[3]};
}

}  // namespace ring
}  // namespace litecache::ops::cuda
