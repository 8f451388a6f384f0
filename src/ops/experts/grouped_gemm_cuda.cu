// A block multiplies the rows of a tile by 128 rows of its expert's weights, of a gated product 64
// of gate and 64 of up. Four warps have 64 x 64 results each (32 x 64 of a tile of 64 rows): with
// larger parts, the tensor cores wait less for operands from shared memory. Of two or three blocks
// on an SM, some multiply while others fill their ring of stages or write results.
//
// GPUs of compute capability 9.0 have faster instructions, for which there is a kernel of its own
// (hopper/grouped_gemm.cu).
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/grouped_gemm_parts.cuh"
#include "ops/experts/hopper/grouped_gemm.h"

namespace litecache::ops::cuda {
namespace {

using namespace grouped;

constexpr int kStages = 3;

// Of an SM, which registers and shared memory are enough for.
template <int kRows>
inline constexpr int kBlocks = kRows == 128 ? 2 : 3;

// The operands of a warp for 16 elements of the depth.
template <int kProducts>
struct Operands {
  uint32_t x[kProducts][4];  // of 16 rows
  uint32_t weights[4][4];    // of 16 outputs
};

template <int kRows, bool kGated>
__global__ void __launch_bounds__(kThreads, kBlocks<kRows>)
    GroupedKernel(const __grid_constant__ GroupedArguments a) {
  constexpr int kProducts = kRows / 32;  // of a warp, along the rows
  using Copies = StageCopies<kRows, kGated>;
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ int32_t pairs[kRows];
  WaitForKernelBefore();
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t in_group = kTileGroup * a.output_blocks;
  const int32_t index = block / in_group * kTileGroup + block % kTileGroup;
  if (index >= a.most_tiles) return;
  const ExpertTile tile = a.tiles[index];
  if (tile.count == 0 || tile.expert < a.weights[0].begin || tile.expert >= a.weights[0].end)
    return;
  const int32_t output_block = block % in_group / kTileGroup;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kRows) pairs[thread] = thread < tile.count ? a.order[tile.first + thread] : 0;
  __syncthreads();

  constexpr int kOutputs = kGated ? kWeightRows / 2 : kWeightRows;
  const int32_t first = output_block * kOutputs;
  Copies copies(a, pairs, tile.expert, tile.count, first);
  const uint32_t base = SharedAddress(ring);
  constexpr uint32_t kEnd = kStages * Copies::kBytes;
  const auto after = [](uint32_t stage) {
    return stage + Copies::kBytes == kEnd ? 0 : stage + Copies::kBytes;
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    copies.CopyX(base + i * Copies::kBytes);
    copies.CopyWeights(base + i * Copies::kBytes);
    CommitCopies();
  }

  const int warp = thread / 32, lane = thread % 32;
  const int warp_row = warp / 2 * (kRows / 2), warp_column = warp % 2;
  // Of rows whose numbers differ by multiples of 8, a chunk has the same place; that of chunk c + 2
  // i of a row is that of c with i << 5 flipped.
  const uint32_t x_at = base + SwizzledOffset(warp_row + lane % 16, lane / 16, kRowBytes);
  const uint32_t weights_at =
      base + kRows * kRowBytes +
      SwizzledOffset(warp_column * 64 + lane / 16 * 8 + lane % 8, lane / 8 % 2, kRowBytes);
  // Warps without rows only copy.
  const bool busy = warp_row < tile.count;
  Operands<kProducts> operands[2];
  const auto load = [&](Operands<kProducts>& to, uint32_t stage, int part) {
    const auto flip = static_cast<uint32_t>(part) << 5;
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      LoadMatrices(to.x[m], (x_at ^ flip) + stage + m * 16 * kRowBytes);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      LoadMatrices(to.weights[n], (weights_at ^ flip) + stage + n * 16 * kRowBytes);
    }
  };
  float sums[kProducts][8][4] = {};
  const auto multiply = [&](const Operands<kProducts>& by) {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint32_t(&w)[4] = by.weights[n / 2];
        MultiplyAdd(sums[m][n], by.x[m], w[n % 2 * 2], w[n % 2 * 2 + 1]);
      }
    }
  };

  WaitForCopies<kStages - 2>();
  __syncthreads();
  uint32_t stage = 0, copy_to = (kStages - 1) * Copies::kBytes;
  if (busy) load(operands[0], stage, 0);
  constexpr int kParts = kDepth / 16;
  for (int32_t k = 0; k < a.depth; k += kDepth) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part == 0) copies.CopyX(base + copy_to);
      if (part == 1) {
        copies.CopyWeights(base + copy_to);
        CommitCopies();
        copy_to = after(copy_to);
      }
      if (part == kParts - 1) {
        // All warps have loaded the stage's last operands, and the next stage is there.
        WaitForCopies<kStages - 2>();
        __syncthreads();
        stage = after(stage);
      }
      if (busy) {
        load(operands[(part + 1) % 2], stage, (part + 1) % kParts);
        multiply(operands[part % 2]);
      }
    }
  }
  LetNextKernelStart();
  // The last stages' copies were zeros; then the ring is free for results.
  WaitForCopies<0>();
  __syncthreads();
  if (!busy) return;
  uint8_t* const area = ring + warp * 16 * kRowBytes;
  const int32_t left = tile.count - warp_row;
  constexpr int kChunks = kGated ? 4 : 8;  // of a matrix's outputs
  const int32_t own = first + warp_column * kChunks * 8;
#pragma unroll
  for (int matrix = 0; matrix < (kGated ? 2 : 1); ++matrix) {
    ForEachBias<kChunks>(a.weights[matrix].biases, tile.expert, own, a.outputs,
                         [&](int n, int i, float bias) {
#pragma unroll
                           for (int m = 0; m < kProducts; ++m) {
                             sums[m][matrix * kChunks + n][i] += bias;
                             sums[m][matrix * kChunks + n][i + 2] += bias;
                           }
                         });
  }
  WriteRows<kProducts, kChunks>(a, pairs + warp_row, left, own, area, [&](int m, int n, int i) {
    if constexpr (kGated) return a.function(sums[m][n][i], sums[m][n + kChunks][i]);
    return sums[m][n][i];
  });
}

template <int kRows, bool kGated>
void Launch(CudaStream& stream, GroupedArguments& a) {
  constexpr int32_t kOutputs = kGated ? kWeightRows / 2 : kWeightRows;
  a.output_blocks = (a.outputs + kOutputs - 1) / kOutputs;
  const int64_t groups = (int64_t{a.most_tiles} + kTileGroup - 1) / kTileGroup;
  const int64_t blocks = groups * kTileGroup * a.output_blocks;
  LC_CHECK(blocks <= INT32_MAX);
  if (blocks == 0) return;
  constexpr size_t kBytes = kStages * StageCopies<kRows, kGated>::kBytes;
  const size_t most = AllowSharedMemory(&GroupedKernel<kRows, kGated>);
  LC_CHECK(kBytes <= most);
  LaunchOverlapping(stream, GroupedKernel<kRows, kGated>, static_cast<unsigned>(blocks), kThreads,
                    kBytes, a);
}

#ifdef LITECACHE_HOPPER_KERNELS
// LITECACHE_WGMMA=0 selects the kernel of all GPUs.
bool UseHopperKernel() {
  const char* variable = std::getenv("LITECACHE_WGMMA");
  if (variable != nullptr && std::string_view(variable) == "0") return false;
  static const bool on_hopper = [] {
    int device = 0, major = 0, minor = 0;
    LC_CUDA(cudaGetDevice(&device));
    LC_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    LC_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0;
  }();
  return on_hopper;
}
#endif

void Multiply(CudaStream& stream, GroupedArguments& a, int64_t tile_rows, bool gated) {
#ifdef LITECACHE_HOPPER_KERNELS
  if (UseHopperKernel()) return HopperGroupedGemm(stream, a, tile_rows, gated);
#endif
  const auto launch = tile_rows == 128 ? (gated ? Launch<128, true> : Launch<128, false>)
                                       : (gated ? Launch<64, true> : Launch<64, false>);
  launch(stream, a);
}

GroupedArguments MakeArguments(const MatrixView& x, const ExpertLists& lists, int64_t tile_rows,
                               const GroupedWeights& weight, const MatrixView& y) {
  LC_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16 && Aligned(x, kChunk) &&
           Aligned(y, kChunk) && weight.stride % kChunk == 0 && weight.expert_stride % kChunk == 0);
  LC_CHECK((tile_rows == 64 || tile_rows == 128) && lists.order != nullptr);
  LC_CHECK(x.cols <= INT32_MAX / 2 && y.cols <= INT32_MAX / 2 &&
           x.rows * x.stride / kChunk <= int64_t{UINT32_MAX});
  return {.x = x.Row<const __nv_bfloat16>(0),
          .x_stride = x.stride,
          .divisor = 1,
          .order = lists.order,
          .tiles = lists.tiles,
          .most_tiles = lists.most_tiles,
          .weights = {weight},
          .outputs = static_cast<int32_t>(y.cols),
          .depth = static_cast<int32_t>(x.cols),
          .y = y.Row<__nv_bfloat16>(0),
          .y_stride = y.stride};
}

}  // namespace

GroupedWeights AllExperts(const ExpertMatrices& matrices) {
  LC_CHECK(matrices.type.dtype == DType::kBF16);
  return {.data = matrices.data,
          .stride = matrices.type.stride,
          .end = static_cast<int32_t>(matrices.count),
          .biases = ExpertBiases::Of(matrices)};
}

int64_t GroupedTileRows(int64_t pairs, int64_t experts) {
  // Half a tile of each expert is empty on average, and smaller tiles take longer per row.
  constexpr int64_t kLargeTileRows = 96;
  return pairs >= kLargeTileRows * experts ? 128 : 64;
}

void GroupedGatedGemm(CudaStream& stream, const MatrixView& x, int64_t active,
                      const ExpertLists& lists, int64_t tile_rows, const GroupedWeights& gate,
                      const GroupedWeights& up, const GateFunction& function, const MatrixView& h) {
  LC_CHECK(gate.begin == up.begin && gate.end == up.end && up.stride % kChunk == 0 &&
           up.expert_stride % kChunk == 0);
  GroupedArguments a = MakeArguments(x, lists, tile_rows, gate, h);
  a.weights[1] = up;
  a.divisor = static_cast<int32_t>(active);
  a.function = function;
  Multiply(stream, a, tile_rows, true);
}

void GroupedGemm(CudaStream& stream, const MatrixView& x, const ExpertLists& lists,
                 int64_t tile_rows, const GroupedWeights& weight, const MatrixView& y) {
  GroupedArguments a = MakeArguments(x, lists, tile_rows, weight, y);
  Multiply(stream, a, tile_rows, false);
}

}  // namespace litecache::ops::cuda
