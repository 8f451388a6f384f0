// Products of few rows near the memory bandwidth at any size (sm_90): one block per SM has an even
// share of all outputs, in tiles of 8 rows of the weights. The block's warps divide a tile's depth,
// and each keeps its own ring of asynchronous copies full: no warp waits for another's bytes, and
// the next tile's copies are in flight while the sums of the current one are added up.
//
// Weights are read once per step, so their lines are the first that the L2 cache evicts: products
// that claim tiles take 1% less time on an H200, and a step of `full` at 128,900 tokens takes 8.55
// instead of 8.80 ms.
//
// If other streams' kernels occupy SMs (ShareGpu), blocks claim their tiles instead, all but the
// first: otherwise all would wait for the even share of a block that starts late because its SM is
// occupied.
//
// Two warps of a scheduler hide little of each other's latencies, so a warp's work for a part of a
// tile is kept short: loads come first, then the next copies while the loads are in flight;
// addresses of copies are incremented, not computed; loops instead of unrolled copies (60 KB of
// instructions for 12 stages); and the result of a claim is not used before the tile's end. With
// all of that a layer's products, shared and with predicted queries, take 115 instead of 132 us.
//
// The launch overlaps the kernel before it (overlap.cuh): weights are constant for the life of a
// stream, so rings fill while that kernel ends. A block takes most of an SM's shared memory: if two
// fitted, an SM that is free first would get two shares and the product would wait for it (logits
// on an H200: 283 us instead of 233).
//
// How lanes hold operands: gemv_cuda.cu.
#include <algorithm>

#include "device/cuda/check.h"
#include "ops/common/overlap.cuh"
#include "ops/linear/gemv_ring_phases.cuh"

namespace litecache::ops::cuda {
namespace {

using namespace ring;

struct RingPlan {
  int32_t units;        // outputs, or pairs of them (kGated), that the blocks divide
  int32_t share, more;  // even shares: units of a block, and how many blocks have one more
  int32_t x_pitch;      // bytes of a row of x in shared memory
  uint32_t* claims;     // tiles claimed, blocks finished; null: even shares
};

// The depth is divided into parts: warp w has parts w, w + kWarps, ... of each tile. Shared memory:
// rings [kWarps][kStages], sums [2][kWarps][rows][kTile], x [rows]. kUpper: x has more than 8 rows.
// kGated: y of target 0 = function(target 0, target 1), and a tile has four outputs of each.
template <int kStages, bool kUpper, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    RingGemvKernel(const __grid_constant__ GemvArguments a, const RingPlan plan) {
  constexpr int kUnits = kGated ? kTile / 2 : kTile;  // in a tile
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int32_t queue[kQueue];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint8_t* const ring = shared + warp * kStages * kStageBytes;
  uint8_t* const sums_at = shared + kWarps * kStages * kStageBytes;
  uint8_t* const x_at = sums_at + SumsBytes(a.rows);

  const bool claims = plan.claims != nullptr;
  const int32_t block = blockIdx.x, blocks = gridDim.x;
  const int32_t first = block * plan.share + min(block, plan.more);
  const int32_t end = claims ? plan.units : first + plan.share + (block < plan.more ? 1 : 0);
  const int32_t parts = (a.depth + kPart - 1) / kPart;
  const int32_t own_parts = (parts - warp + kWarps - 1) / kWarps;  // warp, warp + kWarps, ...
  const int chunk = lane % 16;
  // A warp's copies are kStages - 1 parts, or this many tiles, ahead of its products.
  const int32_t ahead =
      1 + static_cast<int32_t>((kStages - 1u) / static_cast<uint32_t>(max(1, parts / kWarps)));
  // First unit of this block's tile i; `end` or more: there is no such tile. A block's first tile
  // is fixed; thread i claims tile 1 + i.
  uint32_t claimed = kNoTile;
  Claim(plan.claims, claims && static_cast<int32_t>(threadIdx.x) < ahead, claimed);
  const auto begin_of = [&](int32_t i) {
    if (!claims) return first + i * kUnits;
    return i == 0 ? block * kUnits : queue[i % kQueue];
  };
  const auto tile_claimed = [&] { return (static_cast<int32_t>(claimed) + blocks) * kUnits; };

  // The position of the copies: the tile, which of this warp's parts, and that part's offset in the
  // depth.
  int32_t copy_tile = 0, copy_part = 0, copy_k = 0, copy_begin = begin_of(0);
  const uint32_t ring_begin = SharedAddress(ring) + PlaceInStage(lane);
  uint32_t copy_to = ring_begin;
  const __nv_bfloat16* rows[kTile / 2];  // of this lane: lane / 16, + 2, + 4, + 6
  // Copies the next stage; commits a group of copies even if nothing is left.
  const auto copy = [&] {
    if (copy_begin < end && own_parts > 0) {
      if (copy_part == 0) {
        FindRows<kGated>(a, copy_begin, end, warp, lane, rows);
        copy_k = warp * kPart + chunk * kChunk;
      }
      CopyStage(copy_to, rows, copy_k < a.depth);
      copy_k += kWarps * kPart;
      copy_to += kStageBytes;
      if (copy_to == ring_begin + kStages * kStageBytes) copy_to = ring_begin;
      if (++copy_part == own_parts) {
        copy_part = 0;
        copy_begin = begin_of(++copy_tile);
        if (copy_begin >= end) LetNextKernelStart();
      }
    }
    CommitCopies();
  };

  // The last part of the first tile looks up the second tile.
  const int32_t asks = min(kStages - 1, max(0, own_parts - 1));
#pragma unroll 1
  for (int32_t i = 0; i < kStages; ++i) {
    if (i == asks && claims) {
      if (static_cast<int32_t>(threadIdx.x) < ahead) queue[1 + threadIdx.x] = tile_claimed();
      __syncthreads();
    }
    if (i < kStages - 1) copy();
  }
  WaitForKernelBefore();
  CopyX(a, plan.x_pitch, warp, lane, own_parts, x_at);
  CommitCopies();

  const int g = lane / 4, q = lane % 4;
  const bool has0 = g < a.rows;
  const bool has8 = kUpper && g + 8 < a.rows;
  const uint8_t* const x0 = x_at + (has0 ? g : 0) * plan.x_pitch + (warp * kPart + q * kChunk) * 2;
  const uint8_t* const x8 =
      x_at + (has8 ? g + 8 : 0) * plan.x_pitch + (warp * kPart + q * kChunk) * 2;
  const int own_row = static_cast<int>(threadIdx.x) / kUnits;
  const int own_unit = static_cast<int>(threadIdx.x) % kUnits;
  WaitForCopies<0>();
  __syncwarp();

  int stage = 0;
  for (int32_t tile = 0;; ++tile) {
    const int32_t begin = begin_of(tile);
    if (begin >= end) break;
    // The result of the claim is not needed before the end of this tile.
    if (claims && threadIdx.x == 0) {
      claimed = kNoTile;
      Claim(plan.claims, begin_of(tile + ahead) < end, claimed);
    }
    const int32_t unit = begin + own_unit;
    const RingOutput output = FindOutput<kGated>(a, unit, own_row, own_row < a.rows && unit < end);
    // Four chains of products, because a single one would wait for the tensor core's latency at
    // each step.
    float chains[4][4] = {};
#pragma unroll 1
    for (int32_t j = 0; j < own_parts; ++j) {
      WaitForCopies<kStages - 2>();
      // The other lanes' copies are done; all lanes have read the stage that is written next.
      __syncwarp();
      RingOperands operands;
      operands.Load(ring + stage * kStageBytes + g * kPart * 2, g, q, x0, x8, j * kWarps * kPart,
                    has0, has8);
      copy();  // while the loads are in flight
      operands.MultiplyInto(chains);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    // Two buffers in turn: a warp overwrites one only when all have passed the barrier after
    // reading it.
    float* const sums = reinterpret_cast<float*>(sums_at) + tile % 2 * (kWarps * a.rows * kTile);
    StoreSums(chains, sums + warp * a.rows * kTile, g, q, has0, has8);
    if (claims && threadIdx.x == 0) queue[(tile + ahead + 1) % kQueue] = tile_claimed();
    __syncthreads();
    if (output.writes) WriteOutput<kGated>(a, output, sums, own_row, own_unit);
  }
  // The last block resets the counters: every block has the results of all of its claims before it
  // counts itself.
  if (claims && threadIdx.x == 0 && atomicAdd(plan.claims + 1, 1u) == gridDim.x - 1) {
    plan.claims[0] = plan.claims[1] = 0;
  }
}

int32_t PitchOfX(int64_t depth) {
  return static_cast<int32_t>((depth + kPart - 1) / kPart * kPart * 2) + kPadding;
}

size_t FixedBytes(int64_t rows, int64_t depth) {
  return static_cast<size_t>(rows * PitchOfX(depth) + SumsBytes(static_cast<int>(rows)));
}

size_t SharedOfABlock() {
  const size_t most = AllowSharedMemory(&RingGemvKernel<kLeastStages, false, false>);
  return most;
}

template <int kStages, bool kUpper, bool kGated>
void Launch(CudaStream& stream, const GemvArguments& a, int32_t units, TileClaims* claims) {
  const size_t most = AllowSharedMemory(&RingGemvKernel<kStages, kUpper, kGated>);
  // More than half of an SM's shared memory, whatever the number of stages.
  const size_t bytes =
      std::max(FixedBytes(a.rows, a.depth) + kWarps * kStages * kStageBytes, most / 2 + 1024);
  LC_CHECK(bytes <= most);
  const int32_t blocks = std::min(units, stream.sm_count());
  // With fewer blocks than SMs, all find room anyway. (Each block takes more than half of an SM,
  // and there are as many blocks as SMs, so there cannot be as many launches in flight as there are
  // counters.)
  if (blocks < stream.sm_count()) claims = nullptr;
  LaunchOverlapping(stream, RingGemvKernel<kStages, kUpper, kGated>, static_cast<unsigned>(blocks),
                    kThreads, bytes, a,
                    RingPlan{.units = units,
                             .share = units / blocks,
                             .more = units % blocks,
                             .x_pitch = PitchOfX(a.depth),
                             .claims = claims != nullptr ? claims->Next() : nullptr});
}

template <bool kUpper, bool kGated>
void LaunchLargest(CudaStream& stream, const GemvArguments& a, int32_t units, TileClaims* claims) {
  const size_t stages = (SharedOfABlock() - FixedBytes(a.rows, a.depth)) / (kWarps * kStageBytes);
  // On shared SMs only as many copies are in flight as the memory's latency requires: more would
  // delay every load of the other kernels, which also need the shared memory. This does not apply
  // if a pull, whose loads over the link wait longest, has SMs of its own.
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
  for (int i = a.count; i < kMaxGemvParts; ++i) a.targets[i].first = INT32_MAX;
  if (outputs > 0) LaunchRing<false>(stream, a, outputs, claims);
}

void RingGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                   const LinearPart& up, const GateFunction& function, TileClaims* claims) {
  LC_CHECK(gate.weight.rows == up.weight.rows && gate.y.rows == x.rows);
  const LinearPart parts[] = {gate, up};
  GemvArguments a = MakeGemvArguments(x, parts, Epilogue::kStore);
  a.function = function;
  if (a.count == 2) LaunchRing<true>(stream, a, a.targets[0].outputs, claims);
}

}  // namespace litecache::ops::cuda
