// One block runs on each SM and multiplies tile after tile: a warpgroup copies stages into a ring,
// far enough ahead to be in the next tile when the other two write the results of the last. It
// copies with instructions of 16 bytes, because rows of x may be anywhere.
//
// A block has the rows of a tile and 256 rows of weights at a time (for a gated product 128 of gate
// and 128 of up): two blocks of 128 x 128 would need a third more of the L2 cache's bandwidth and a
// quarter more of shared memory's, and either has little to spare when tensor cores are busy. Of a
// tile of 128 rows each of the multiplying warpgroups has half the rows, of one of 64 half the
// outputs.
#include <algorithm>

#include "base/error.h"
#include "ops/common/bulk_copies.cuh"
#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/experts/hopper/grouped_gemm.h"
#include "ops/experts/hopper/tile_copies.cuh"
#include "ops/experts/hopper/warpgroup_products.cuh"

namespace litecache::ops::cuda {
namespace {

using namespace grouped;

constexpr int kMultiplying = 2;  // warpgroups, before the one that copies
constexpr int kBlockThreads = (kMultiplying + 1) * kWarpgroup;
constexpr int kMultiplyingWarps = kMultiplying * kWarpgroup / 32;
constexpr int kWarpRows = 16;  // of a tile

// A block's shared memory, from an address that is a multiple of kAlignment.
template <int kRows, bool kGated>
struct Memory {
  static constexpr int kStages = kRows == 128 ? 4 : 5;
  static constexpr int kStageBytes = TileCopies<kRows, kGated>::kBytes;
  static constexpr uint32_t kAlignment = 1024;  // of operands
  static_assert(kStageBytes % kAlignment == 0 && kRows * kRowBytes % kAlignment == 0);

  uint8_t ring[kStages][kStageBytes];
  uint8_t results[kMultiplyingWarps][kWarpRows * kRowBytes];
  uint64_t full[kStages], empty[kStages];  // barriers of the stages
  int32_t pairs[kMultiplyingWarps][kWarpRows];
  int32_t tile_counts[2];
};

// A stage of the ring, and the parity of the phase that its barriers are in.
template <int kStages>
struct Place {
  uint32_t stage = 0, parity = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// GateFunction, with instructions whose errors are far below those of rounding to bf16: tensor
// cores wait meanwhile, and an exact division takes several times as long.
class FastGate {
 public:
  __device__ explicit FastGate(const GateFunction& function)
      : linear_(-kLog2E * function.linear),
        cubic_(-kLog2E * function.cubic),
        limit_(function.limit),
        up_added_(function.up_added) {}

  __device__ float operator()(float gate, float up) const {
    const float g = fminf(gate, limit_);
    const float square = fminf(g * g, 1e30f);
    return __fdividef(g, 1.0f + Exp2((linear_ + cubic_ * square) * g)) *
           (fminf(fmaxf(up, -limit_), limit_) + up_added_);
  }

 private:
  static constexpr float kLog2E = 1.44269504f;
  float linear_, cubic_, limit_, up_added_;
};

// For the warpgroup that copies. What a tile needs from memory before its copies is read while the
// one before it is copied.
template <int kRows, bool kGated>
__device__ inline void CopyTiles(const GroupedArguments& a, const TileOrder& order,
                                 Memory<kRows, kGated>& memory) {
  TileCopies<kRows, kGated> copies(a, static_cast<int>(threadIdx.x) % kWarpgroup);
  const uint32_t ring = SharedAddress(memory.ring);
  const uint32_t full = SharedAddress(memory.full), empty = SharedAddress(memory.empty);
  Place<Memory<kRows, kGated>::kStages> place;
  TileOutputs next = order.At(1);
  auto source = copies.LookUp(order.At(0));
  for (int32_t i = 0; i < order.count(); ++i) {
    copies.Begin(source);
    source = copies.LookUp(next);
    next = order.At(i + 2);
    for (int32_t k = 0; k < a.depth; k += kDepth) {
      WaitForRuns(empty + place.stage * sizeof(uint64_t), place.parity ^ 1);
      copies.Copy(ring + place.stage * Memory<kRows, kGated>::kStageBytes);
      ArriveAfterCopies(full + place.stage * sizeof(uint64_t));
      place.Advance();
    }
  }
}

// For the warpgroups that multiply.
template <int kRows, bool kGated>
__device__ inline void MultiplyTiles(const GroupedArguments& a, const TileOrder& order,
                                     Memory<kRows, kGated>& memory, int warpgroup) {
  constexpr bool kShareRows = kRows == 128;
  constexpr int kWeights = kShareRows ? kStageWeights : kStageWeights / kMultiplying;
  constexpr int kWritten = 64;  // outputs at a time
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group_row = kShareRows ? warpgroup * 64 : 0;
  const int group_weights = kShareRows ? 0 : warpgroup * kWeights;
  const int warp_row = group_row + warp % 4 * kWarpRows;
  const uint32_t ring = SharedAddress(memory.ring);
  const uint32_t full = SharedAddress(memory.full), empty = SharedAddress(memory.empty);
  const uint64_t x = MatrixOperand(ring + group_row * kRowBytes);
  const uint64_t weights = MatrixOperand(ring + (kRows + group_weights) * kRowBytes);
  const auto release = [&](uint32_t stage) {
    if (lane == 0) Arrive(empty + stage * sizeof(uint64_t));
  };
  Place<Memory<kRows, kGated>::kStages> place;
  float sums[kWeights / 8][4] = {};
  const FastGate gate(a.function);
  TileOutputs next = order.At(0);
  for (int32_t i = 0; i < order.count(); ++i) {
    const auto [tile, first] = next;
    if (group_row >= tile.count) {
      next = order.At(i + 1);
      for (int32_t k = 0; k < a.depth; k += kDepth) {
        WaitForRuns(full + place.stage * sizeof(uint64_t), place.parity);
        release(place.stage);
        place.Advance();
      }
      continue;
    }
    uint32_t before = 0;
    int32_t pair = 0;
    for (int32_t k = 0; k < a.depth; k += kDepth) {
      WaitForRuns(full + place.stage * sizeof(uint64_t), place.parity);
      SeeCopies();
      BeginProducts();
      const uint64_t at = place.stage * (Memory<kRows, kGated>::kStageBytes >> 4);
#pragma unroll
      for (int part = 0; part < kDepth / 16; ++part) {
        MultiplyAdd(sums, x + at + part * kOperandStep, weights + at + part * kOperandStep,
                    k > 0 || part > 0);
      }
      CommitProducts();
      if (k == 0) {
        // SeeCopies() waits for these reads; tensor cores are busy meanwhile.
        next = order.At(i + 1);
        if (lane < kWarpRows && warp_row + lane < tile.count) {
          pair = a.order[tile.first + warp_row + lane];
        }
      }
      // With these products to do, tensor cores are busy while the stage before changes hands.
      WaitForProducts<1>();
      if (k > 0) release(before);
      before = place.stage;
      place.Advance();
    }
    WaitForProducts<0>();
    release(before);
    TakeSums(sums);
    if (warp_row >= tile.count) continue;
    int32_t* const pairs = memory.pairs[warp];
    if (lane < kWarpRows) pairs[lane] = pair;
    __syncwarp();
    const int32_t output = first + (kGated ? group_weights / 2 : group_weights);
#pragma unroll
    for (int part = 0; part < kWeights / (kGated ? 2 * kWritten : kWritten); ++part) {
      constexpr int kMatrices = kGated ? 2 : 1;
      const int32_t written = output + part * kWritten;
      const int at = kMatrices * kWritten / 8 * part;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        ForEachBias<kWritten / 8>(a.weights[m].biases, tile.expert, written, a.outputs,
                                  [&](int n, int i, float bias) {
                                    sums[at + kWritten / 8 * m + n][i] += bias;
                                    sums[at + kWritten / 8 * m + n][i + 2] += bias;
                                  });
      }
      WriteRows<1, kWritten / 8>(a, pairs, tile.count - warp_row, written, memory.results[warp],
                                 [&](int, int n, int i) {
                                   const float sum = sums[at + n][i];
                                   if constexpr (!kGated) return sum;
                                   return gate(sum, sums[at + kWritten / 8 + n][i]);
                                 });
    }
  }
}

template <int kRows, bool kGated>
__global__ void __launch_bounds__(kBlockThreads, 1)
    GroupedKernel(const __grid_constant__ GroupedArguments a) {
  using SharedMemory = Memory<kRows, kGated>;
  extern __shared__ uint8_t shared[];
  const uint32_t unaligned = SharedAddress(shared) % SharedMemory::kAlignment;
  auto& memory = *reinterpret_cast<SharedMemory*>(shared + (SharedMemory::kAlignment - unaligned) %
                                                               SharedMemory::kAlignment);
  if (threadIdx.x == 0) {
    for (int i = 0; i < SharedMemory::kStages; ++i) {
      InitBarrier(SharedAddress(&memory.full[i]), kWarpgroup);
      InitBarrier(SharedAddress(&memory.empty[i]), kMultiplyingWarps);
    }
  }
  WaitForKernelBefore();
  const TileRange range = FindTiles(a, memory.tile_counts);
  const TileOrder order(a, range, kGated ? kStageWeights / 2 : kStageWeights);
  if (order.count() == 0) return;
  // The same for a whole warp, in a way that the compiler sees.
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == kMultiplying) {
    GiveRegisters<104>();
    CopyTiles(a, order, memory);
    LetNextKernelStart();
  } else {
    TakeRegisters<200>();
    MultiplyTiles(a, order, memory, warpgroup);
  }
}

template <int kRows, bool kGated>
void Launch(CudaStream& stream, GroupedArguments& a) {
  constexpr int32_t kOutputs = kGated ? kStageWeights / 2 : kStageWeights;
  a.output_blocks = (a.outputs + kOutputs - 1) / kOutputs;
  const int64_t most = int64_t{a.most_tiles} * a.output_blocks;
  LC_CHECK(most <= INT32_MAX / 2);
  if (most == 0) return;
  using SharedMemory = Memory<kRows, kGated>;
  constexpr size_t kBytes = sizeof(SharedMemory) + SharedMemory::kAlignment;
  const size_t most_bytes = AllowSharedMemory(&GroupedKernel<kRows, kGated>);
  LC_CHECK(kBytes <= most_bytes);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(stream.sm_count(), most));
  LaunchOverlapping(stream, GroupedKernel<kRows, kGated>, blocks, kBlockThreads, kBytes, a);
}

}  // namespace

void HopperGroupedGemm(CudaStream& stream, GroupedArguments a, int64_t tile_rows, bool gated) {
  LC_CHECK((tile_rows == 64 || tile_rows == 128) && a.depth > 0);
  const auto launch = tile_rows == 128 ? (gated ? Launch<128, true> : Launch<128, false>)
                                       : (gated ? Launch<64, true> : Launch<64, false>);
  launch(stream, a);
}

}  // namespace litecache::ops::cuda
