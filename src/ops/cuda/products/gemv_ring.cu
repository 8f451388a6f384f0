// Few-row products near the memory's rate at any size (sm_90): one block an SM has an even share of
// all outputs, in tiles of 8 rows of the weights. The block's warps share a tile's depth, and each
// keeps a ring of its own full of copies that nobody waits for: no warp waits for another's bytes,
// and the next tile's are under way while the sums of this one are added up.
//
// Weights are read once a step, so their lines are the first that the L2 gives up: products that
// share the GPU, of a layer with predicted queries, take 139.7 instead of 141.3 us (H200).
//
// Where other streams' kernels hold SMs (ShareGpu), blocks claim their tiles instead: an even share
// of a block that starts late, because its SM is taken, would be what all others wait for.
//
// The launch overlaps the kernel before it (overlap.cuh): weights are constant for the life of a
// stream, so rings fill while that kernel ends. A block takes most of an SM's shared memory: where
// two fit, an SM that is free first gets two shares and the product waits for it (logits of an
// H200: 283 us instead of 233).
//
// How lanes hold operands: gemv.cu.
#include <algorithm>

#include "device/cuda/check.h"
#include "ops/cuda/common/overlap.cuh"
#include "ops/cuda/common/shared_memory.cuh"
#include "ops/cuda/common/tensor_core.cuh"
#include "ops/cuda/common/vectors.cuh"
#include "ops/cuda/products/gemv_parts.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 8;    // rows of the weights: outputs of one tensor core product
constexpr int kPart = 128;  // elements of their depth in a stage of a ring
constexpr int kDepth = 32;  // of those, what a warp multiplies in a step
constexpr int kChunk = 8;   // and a lane: 16 bytes
constexpr int kStageBytes = kTile * kPart * 2;
constexpr int kMostStages = 12;
constexpr int kLeastStages = 5;  // fewer do not hide the memory's latency
// Rows of x in shared memory are this much longer: chunks of one step are in different banks.
constexpr int kPadding = 64;

// The tiles a block knows beyond the one that it multiplies: those that its copies may have come
// to.
constexpr int kQueue = 16;

struct RingPlan {
  int32_t units;     // outputs, or pairs of them (kGated), that the blocks share
  int32_t x_pitch;   // bytes of a row of x in shared memory
  uint32_t* claims;  // tiles claimed, blocks done; null: even shares
};

__host__ __device__ constexpr int SumsBytes(int rows) { return 2 * kWarps * rows * kTile * 4; }

// Parts of the depth: warp w has parts w, w + kWarps, ... of each tile. Shared memory: rings
// [kWarps][kStages], sums [2][kWarps][rows][kTile], x [rows]. kUpper: x has more than 8 rows.
// kGated: y of target 0 = silu(target 0) * target 1, and a tile has four outputs of each.
template <int kStages, bool kUpper, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    RingGemvKernel(const __grid_constant__ GemvArguments a, const RingPlan plan) {
  constexpr int kUnits = kGated ? kTile / 2 : kTile;  // of a tile
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int32_t queue[kQueue];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint8_t* const ring = shared + warp * kStages * kStageBytes;
  uint8_t* const sums_at = shared + kWarps * kStages * kStageBytes;
  uint8_t* const x_at = sums_at + SumsBytes(a.rows);

  const auto share = [&](int64_t block) {
    return static_cast<int32_t>(block * plan.units / static_cast<int64_t>(gridDim.x));
  };
  const bool claims = plan.claims != nullptr;
  const int32_t first = share(blockIdx.x);
  const int32_t end = claims ? plan.units : share(int64_t{blockIdx.x} + 1);
  const int32_t parts = (a.depth + kPart - 1) / kPart;
  const int32_t own_parts = (parts - warp + kWarps - 1) / kWarps;  // warp, warp + kWarps, ...
  const int chunk = lane % 16;
  // Copies of a warp are kStages - 1 parts, or this many tiles, before what it multiplies.
  const int32_t ahead = 1 + (kStages - 1) / max(1, parts / kWarps);
  static_assert(1 + kStages - 1 + 2 <
                kQueue);  // a slot is not written while the tile before needs it
  if (claims) {
    if (threadIdx.x == 0) {
      const auto claimed = static_cast<int32_t>(atomicAdd(plan.claims, ahead + 1u));
      for (int32_t i = 0; i <= ahead; ++i) queue[i] = (claimed + i) * kUnits;
    }
    __syncthreads();
  }
  // First unit of this block's tile i; `end` or more: there is none.
  const auto begin_of = [&](int32_t i) { return claims ? queue[i % kQueue] : first + i * kUnits; };

  // Where the copies are: the tile, and which of this warp's parts.
  int32_t copy_tile = 0, copy_part = 0, copy_begin = begin_of(0);
  int copy_stage = 0;
  const __nv_bfloat16* rows[kTile / 2];  // of this lane: lane / 16, + 2, + 4, + 6; null: none
  const auto begin_tile = [&] {
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) {
      const int r = 2 * i + lane / 16;
      const int32_t unit = copy_begin + r % kUnits;
      rows[i] = nullptr;
      if (unit < end) {
        const GemvTarget& target = kGated ? a.targets[r / kUnits] : TargetOf(a, unit);
        rows[i] = target.weight + (kGated ? unit : unit - target.first) * target.stride + chunk * 8;
      }
    }
  };
  // The next stage, a group of copies even where there is nothing left.
  const auto copy = [&] {
    if (copy_begin < end && own_parts > 0) {
      if (copy_part == 0) begin_tile();
      const int32_t k = (warp + copy_part * kWarps) * kPart;
      const uint32_t to = SharedAddress(ring + copy_stage * kStageBytes);
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) {
        const int r = 2 * i + lane / 16;
        // Odd rows have the halves of 128 bytes exchanged: a step's chunks are in different banks.
        CopyChunkOnce(to + static_cast<uint32_t>(r * kPart * 2 + ((chunk ^ ((r & 1) << 2)) << 4)),
                      rows[i] + k, rows[i] != nullptr && k + chunk * 8 < a.depth);
      }
      copy_stage = copy_stage + 1 == kStages ? 0 : copy_stage + 1;
      if (++copy_part == own_parts) {
        copy_part = 0;
        copy_begin = begin_of(++copy_tile);
        if (copy_begin >= end) LetNextKernelStart();
      }
    }
    CommitCopies();
  };

#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy();
  WaitForKernelBefore();
  for (int t = 0; t < a.rows; ++t) {
    for (int j = lane / 16; j < own_parts; j += 2) {
      const int32_t k = (warp + j * kWarps) * kPart + chunk * 8;
      CopyChunk(SharedAddress(x_at + t * plan.x_pitch + k * 2), a.x + t * a.x_stride + k,
                k < a.depth);
    }
  }
  CommitCopies();

  const int g = lane / 4;
  const int q = lane % 4;
  const bool has0 = g < a.rows;
  const bool has8 = kUpper && g + 8 < a.rows;
  const uint4 zero = {0, 0, 0, 0};
  const uint8_t* const x0 = x_at + (has0 ? g : 0) * plan.x_pitch + q * kChunk * 2;
  const uint8_t* const x8 = x_at + (has8 ? g + 8 : 0) * plan.x_pitch + q * kChunk * 2;
  const int own_row = static_cast<int>(threadIdx.x) / kUnits;
  const int own_unit = static_cast<int>(threadIdx.x) % kUnits;
  WaitForCopies<0>();
  __syncwarp();

  int stage = 0;
  for (int32_t tile = 0;; ++tile) {
    const int32_t begin = begin_of(tile);
    if (begin >= end) break;
    // The answer has until the end of this tile.
    int32_t claimed = plan.units;
    if (claims && threadIdx.x == 0 && begin_of(tile + ahead) < end) {
      claimed = static_cast<int32_t>(atomicAdd(plan.claims, 1u)) * kUnits;
    }
    const int32_t unit = begin + own_unit;
    const bool writes = own_row < a.rows && unit < end;
    const GemvTarget& target = kGated ? a.targets[0] : TargetOf(a, unit);
    const int32_t output = kGated ? unit : unit - target.first;
    const int64_t at_y = own_row * target.y_stride + output;
    // What the result needs beside the sums is on its way while they are made; second: y before, or
    // the bias of target 1.
    float bias = 0, second = 0;
    if (writes) {
      if (target.bias != nullptr) bias = target.bias[output];
      if constexpr (kGated) {
        if (a.targets[1].bias != nullptr) second = a.targets[1].bias[output];
      } else {
        if (a.add) second = static_cast<const float*>(target.y)[at_y];
      }
    }
    // Four chains of products: one alone would wait for a tensor core's latency at each.
    float chains[4][4] = {};
    for (int32_t j = 0; j < own_parts; ++j) {
      WaitForCopies<kStages - 2>();
      __syncwarp();  // the other lanes' copies; and all have read the stage that is written next
      copy();
      const uint8_t* const w = ring + stage * kStageBytes + g * kPart * 2;
      const int32_t k = (warp + j * kWarps) * kPart;
#pragma unroll
      for (int u = 0; u < kPart / kDepth; ++u) {
        const uint4 low = has0 ? *reinterpret_cast<const uint4*>(x0 + (k + u * kDepth) * 2) : zero;
        const uint4 high = has8 ? *reinterpret_cast<const uint4*>(x8 + (k + u * kDepth) * 2) : zero;
        const uint4 weights =
            *reinterpret_cast<const uint4*>(w + (((u * 4 + q) ^ ((g & 1) << 2)) << 4));
        GemvMultiply(chains[u % 2], low.x, low.y, high.x, high.y, weights.x, weights.y);
        GemvMultiply(chains[u % 2 + 2], low.z, low.w, high.z, high.w, weights.z, weights.w);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    float sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[i] = (chains[0][i] + chains[1][i]) + (chains[2][i] + chains[3][i]);
    }
    // Two buffers in turn: a warp writes one only when all have passed the barrier after reading
    // it. Lane 4 g + q has rows g (0, 1) and g + 8 (2, 3), outputs 2q and 2q + 1.
    float* const sums = reinterpret_cast<float*>(sums_at) + tile % 2 * (kWarps * a.rows * kTile);
    if (has0) {
      *reinterpret_cast<float2*>(sums + (warp * a.rows + g) * kTile + 2 * q) = {sum[0], sum[1]};
    }
    if (has8) {
      *reinterpret_cast<float2*>(sums + (warp * a.rows + g + 8) * kTile + 2 * q) = {sum[2], sum[3]};
    }
    if (claims && threadIdx.x == 0) queue[(tile + ahead + 1) % kQueue] = claimed;
    __syncthreads();
    if (!writes) continue;
    const auto total = [&](int column) {
      float value = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) value += sums[(i * a.rows + own_row) * kTile + column];
      return value;
    };
    float value = total(own_unit) + bias;
    if constexpr (kGated) {
      value = value / (1.0f + expf(-value)) * (total(kUnits + own_unit) + second);
    }
    if (target.bf16_y) {
      static_cast<__nv_bfloat16*>(target.y)[at_y] = __float2bfloat16(value);
    } else {
      static_cast<float*>(target.y)[at_y] = !kGated && a.add ? second + value : value;
    }
  }
  // The last block leaves the counters as it found them: all claims have been made.
  if (claims && threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(plan.claims + 1, 1u) == gridDim.x - 1) plan.claims[0] = plan.claims[1] = 0;
  }
}

int32_t PitchOfX(int64_t depth) {
  return static_cast<int32_t>((depth + kPart - 1) / kPart * kPart * 2) + kPadding;
}

size_t FixedBytes(int64_t rows, int64_t depth) {
  return static_cast<size_t>(rows * PitchOfX(depth) + SumsBytes(static_cast<int>(rows)));
}

size_t SharedOfABlock() {
  static const size_t most = AllowSharedMemory(&RingGemvKernel<kLeastStages, false, false>);
  return most;
}

template <int kStages, bool kUpper, bool kGated>
void Launch(CudaStream& stream, const GemvArguments& a, int32_t units, TileClaims* claims) {
  static const size_t most = AllowSharedMemory(&RingGemvKernel<kStages, kUpper, kGated>);
  // More than half of an SM's, whatever the stages.
  const size_t bytes =
      std::max(FixedBytes(a.rows, a.depth) + kWarps * kStages * kStageBytes, most / 2 + 1024);
  LC_CHECK(bytes <= most);
  const int32_t blocks = std::min(units, stream.sm_count());
  // Fewer blocks than SMs find room anyway. (More than half of an SM each, and as many as there are
  // SMs: that many launches as there are counters cannot be under way at once.)
  if (blocks < stream.sm_count()) claims = nullptr;
  LaunchOverlapping(stream, RingGemvKernel<kStages, kUpper, kGated>, static_cast<unsigned>(blocks),
                    kThreads, bytes, a,
                    RingPlan{.units = units,
                             .x_pitch = PitchOfX(a.depth),
                             .claims = claims != nullptr ? claims->Next() : nullptr});
}

template <bool kUpper, bool kGated>
void LaunchLargest(CudaStream& stream, const GemvArguments& a, int32_t units, TileClaims* claims) {
  const size_t stages = (SharedOfABlock() - FixedBytes(a.rows, a.depth)) / (kWarps * kStageBytes);
  // On SMs that are shared no more copies than the memory's latency asks for: what all have under
  // way is how long every load of the others waits, and shared memory is for them as well. Loads
  // over the link, which wait longest, are not among those where a pull has SMs of its own.
  if (claims != nullptr && stream.diverted() && stages >= 8) {
    Launch<8, kUpper, kGated>(stream, a, units, claims);
  } else if (claims != nullptr) {
    Launch<kLeastStages, kUpper, kGated>(stream, a, units, claims);
  } else if (stages >= kMostStages) {
    Launch<kMostStages, kUpper, kGated>(stream, a, units, claims);
  } else if (stages >= 8) {
    Launch<8, kUpper, kGated>(stream, a, units, claims);
  } else {
    Launch<kLeastStages, kUpper, kGated>(stream, a, units, claims);
  }
}

template <bool kGated>
void LaunchRing(CudaStream& stream, const GemvArguments& a, int32_t units, TileClaims* claims) {
  a.rows > 8 ? LaunchLargest<true, kGated>(stream, a, units, claims)
             : LaunchLargest<false, kGated>(stream, a, units, claims);
}

}  // namespace

TileClaims::TileClaims(CudaStream& stream) {
  void* memory = nullptr;
  LC_CUDA(cudaMalloc(&memory, kBytes));
  memory_ = Buffer(memory, kBytes, [](void* data, size_t) { cudaFree(data); });
  LC_CUDA(cudaMemsetAsync(memory, 0, kBytes, stream.handle()));
}

uint32_t* TileClaims::Next() {
  uint32_t* counters = memory_.as<uint32_t>() + 2 * next_;
  next_ = (next_ + 1) % kCount;
  return counters;
}

bool RingGemvServes(const MatrixView& x, std::span<const LinearPart> parts) {
  if (x.dtype != DType::kBF16 || x.rows > kMaxGemvRows || !Aligned(x, kChunk)) return false;
  for (const LinearPart& part : parts) {
    if (!Aligned(part.weight, kChunk)) return false;
  }
  return KernelsKnowHopper() &&
         FixedBytes(x.rows, x.cols) + kWarps * kLeastStages * kStageBytes <= SharedOfABlock();
}

void RingGemv(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
              Epilogue epilogue, TileClaims* claims) {
  GemvArguments a = MakeGemvArguments(x, parts, epilogue);
  int32_t outputs = 0;
  for (int i = 0; i < a.count; ++i) {
    a.targets[i].first = outputs;
    outputs += a.targets[i].outputs;
  }
  if (outputs > 0) LaunchRing<false>(stream, a, outputs, claims);
}

void RingGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                   const LinearPart& up, TileClaims* claims) {
  LC_CHECK(gate.weight.rows == up.weight.rows && gate.y.rows == x.rows);
  const LinearPart parts[] = {gate, up};
  const GemvArguments a = MakeGemvArguments(x, parts, Epilogue::kStore);
  if (a.count == 2) LaunchRing<true>(stream, a, a.targets[0].outputs, claims);
}

}  // namespace litecache::ops::cuda
