// A block multiplies one tile by a few of its expert's outputs; its warps take turns along the
// depth, and their sums are added at the end. Blocks that run together have the same outputs of all
// tiles: tiles of one expert find each other's weights in the L2 cache.
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/expert_address.cuh"
#include "ops/experts/expert_biases_cuda.h"
#include "ops/experts/row_products.cuh"
#include "ops/experts/row_products_cuda.h"

namespace litecache::ops::cuda {
namespace {

using namespace row_products;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRing = 2;  // units in flight of a warp

struct TileMatrix {
  const void* const* data;  // of the experts
  int64_t stride;
  ExpertBiases biases;
};

struct TileArguments {
  const __nv_bfloat16* x;
  int64_t x_stride;
  int32_t divisor;         // pair p multiplies row p / divisor of x
  const int32_t* experts;  // of the pairs, which are the tiles; or null:
  const int32_t* order;
  const ExpertTile* tiles;
  TileMatrix matrices[2];  // gate and up, or down
  int32_t experts_count, outputs, depth;
  GateFunction function;
  __nv_bfloat16* y;  // [pairs]
  int64_t y_stride;
};

// Lists and routing may be written by the kernels of an earlier layer to the same addresses, so
// what is read before the wait bypasses the L1 cache.
template <bool kPairs>
__device__ inline ExpertTile TileOf(const TileArguments& a) {
  const auto index = static_cast<int32_t>(blockIdx.x);
  if constexpr (kPairs) {
    const int32_t expert = __ldcg(a.experts + index);
    return {expert, index, expert == Routing::kElsewhere ? 0 : 1};
  }
  const ExpertTile* const tile = a.tiles + index;
  return {__ldcg(&tile->expert), __ldcg(&tile->first), __ldcg(&tile->count)};
}

template <bool kPairs>
__device__ inline int32_t PairOf(const TileArguments& a, int32_t place) {
  return kPairs ? place : __ldcg(a.order + place);
}

// kPairs: tiles are single pairs. kGated: kGroups groups of 8 outputs of gate and of up.
template <int kGroups, bool kPairs, bool kGated, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    TileKernel(const __grid_constant__ TileArguments a) {
  constexpr int kMatrices = kGated ? 2 : 1;
  constexpr int kParts = kMatrices * kGroups;
  constexpr int kRows = kPairs ? 1 : static_cast<int>(kExpertTileRows);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, q = lane % 4;
  if constexpr (kGated) {
    // The routing is not known yet, but where the matrices are can be on its way.
    const int32_t line = static_cast<int32_t>(threadIdx.x) * 16;
    if (line < a.experts_count) {
      PrefetchToL2(a.matrices[0].data + line);
      PrefetchToL2(a.matrices[1].data + line);
    }
    WaitForKernelBefore();
    LetNextKernelStart();
  }
  const ExpertTile tile = TileOf<kPairs>(a);
  if (tile.count == 0) {
    if constexpr (!kGated) WaitForKernelBefore();
    return;
  }
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kGroups * kGroup;
  const __nv_bfloat16* w[kParts];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    const auto* const matrix =
        static_cast<const __nv_bfloat16*>(AddressOf(a.matrices[m].data, tile.expert));
    if (threadIdx.x == 0) {
      const float* const biases = a.matrices[m].biases.From(tile.expert, first);
      if (biases != nullptr) PrefetchToL2(biases);
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      // Beyond the last output its row is read again and the result is dropped.
      const int32_t row = min(first + j * kGroup + g, a.outputs - 1);
      w[m * kGroups + j] = matrix + row * a.matrices[m].stride + q * kChunk;
    }
  }
  const int32_t depth = a.depth - q * kChunk;  // from the lane's first element
  constexpr int32_t kTurn = kWarps * kUnit;
  UnitRow ring[kRing][kParts];
  const int32_t begin = warp * kUnit;
#pragma unroll
  for (int r = 0; r < kRing; ++r) {
    const int32_t k = begin + r * kTurn;
#pragma unroll
    for (int j = 0; j < kParts; ++j) ring[r][j] = LoadWeights(w[j], k, depth - k);
  }
  const bool has0 = g < tile.count, has8 = g + 8 < tile.count;
  const auto row_of = [&](int row, bool has) {
    const int32_t pair = has ? PairOf<kPairs>(a, tile.first + row) : 0;
    return a.x + pair / a.divisor * a.x_stride + q * kChunk;
  };
  const __nv_bfloat16* const x0 = row_of(g, has0);
  const __nv_bfloat16* const x8 = kPairs ? nullptr : row_of(g + 8, has8);
  if constexpr (!kGated) WaitForKernelBefore();

  const auto low = [&](int32_t k) { return LoadX(x0, k, has0 ? depth - k : 0); };
  float sum[kParts][4] = {};
  for (int32_t turn = begin; turn < a.depth; turn += kRing * kTurn) {
#pragma unroll
    for (int r = 0; r < kRing; ++r) {
      const int32_t k = turn + r * kTurn;
      const UnitRow x = low(k);
      UnitRow upper = {};
      if constexpr (!kPairs) upper = LoadX(x8, k, has8 ? depth - k : 0);
      const int32_t ahead = k + kRing * kTurn;
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        MultiplyUnit(sum[j], x, upper, ring[r][j]);
        ring[r][j] = LoadWeights(w[j], ahead, depth - ahead);
      }
    }
  }
  if constexpr (!kGated) LetNextKernelStart();

  // Lane 4 g + q holds rows g (0, 1) and g + 8 (2, 3), outputs 2 q and 2 q + 1.
  __shared__ float2 sums[kWarps][kParts][kRows][kGroup / 2];
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    if (!kPairs || g == 0) sums[warp][j][g % kRows][q] = {sum[j][0], sum[j][1]};
    if constexpr (!kPairs) sums[warp][j][g + 8][q] = {sum[j][2], sum[j][3]};
  }
  __syncthreads();
  constexpr int kPart = kRows * kGroup, kSums = kParts * kPart;
  const auto* const flat = reinterpret_cast<const float*>(&sums[0][0][0][0]);
  const auto total = [&](int at) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) value += flat[i * kSums + at];
    return value;
  };
  for (int e = static_cast<int>(threadIdx.x); e < kGroups * kPart; e += kThreads) {
    const int row = e / kGroup % kRows;
    const int32_t output = first + e / kPart * kGroup + e % kGroup;
    if (row >= tile.count || output >= a.outputs) continue;
    const auto product = [&](int m) {
      return total(m * kGroups * kPart + e) + a.matrices[m].biases.At(tile.expert, output);
    };
    float value = product(0);
    if constexpr (kGated) value = a.function(value, product(1));
    const int64_t pair = PairOf<kPairs>(a, tile.first + row);
    a.y[pair * a.y_stride + output] = __float2bfloat16(value);
  }
}

TileMatrix MatrixOf(const ExpertMatrices& matrices) {
  LC_CHECK(matrices.type.dtype == DType::kBF16 && matrices.type.stride % kChunk == 0);
  return {matrices.data, matrices.type.stride, ExpertBiases::Of(matrices)};
}

// Without what differs between pairs and lists.
TileArguments MakeArguments(const MatrixView& x, const ExpertMatrices& matrices,
                            const MatrixView& y) {
  LC_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16 && Aligned(x, kChunk) &&
           Aligned(y, kChunk) && x.cols == matrices.type.cols && y.cols == matrices.type.rows);
  LC_CHECK(x.cols <= INT32_MAX / 2 && y.cols <= INT32_MAX / 2);
  return {.x = x.Row<const __nv_bfloat16>(0),
          .x_stride = x.stride,
          .divisor = 1,
          .matrices = {MatrixOf(matrices)},
          .experts_count = static_cast<int32_t>(matrices.count),
          .outputs = static_cast<int32_t>(y.cols),
          .depth = static_cast<int32_t>(x.cols),
          .y = y.Row<__nv_bfloat16>(0),
          .y_stride = y.stride};
}

// kBlocks: blocks that the registers of an SM have to be enough for, so that all of them together
// have some 100 KB in flight.
template <int kGroups, bool kPairs, bool kGated, int kBlocks>
void Launch(CudaStream& stream, const TileArguments& a, int64_t tiles) {
  constexpr int32_t kOutputs = kGroups * kGroup;
  if (tiles == 0) return;
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>((a.outputs + kOutputs - 1) / kOutputs));
  LaunchOverlapping(stream, TileKernel<kGroups, kPairs, kGated, kBlocks>, grid, kThreads, 0, a);
}

}  // namespace

void GatedPairs(CudaStream& stream, const MatrixView& x, const Routing& routing,
                const ExpertMatrices& gate, const ExpertMatrices& up, const GateFunction& function,
                const MatrixView& h) {
  TileArguments a = MakeArguments(x, gate, h);
  a.matrices[1] = MatrixOf(up);
  a.divisor = static_cast<int32_t>(routing.active);
  a.experts = routing.experts;
  a.function = function;
  Launch<1, true, true, 6>(stream, a, h.rows);
}

void GatedTiles(CudaStream& stream, const MatrixView& x, int64_t active, const ExpertLists& lists,
                const ExpertMatrices& gate, const ExpertMatrices& up, const GateFunction& function,
                const MatrixView& h) {
  TileArguments a = MakeArguments(x, gate, h);
  a.matrices[1] = MatrixOf(up);
  a.divisor = static_cast<int32_t>(active);
  a.order = lists.order;
  a.tiles = lists.tiles;
  a.function = function;
  Launch<2, false, true, 3>(stream, a, lists.most_tiles);
}

void DownTiles(CudaStream& stream, const MatrixView& h, const ExpertLists& lists,
               const ExpertMatrices& down, const MatrixView& output) {
  TileArguments a = MakeArguments(h, down, output);
  a.order = lists.order;
  a.tiles = lists.tiles;
  Launch<4, false, false, 3>(stream, a, lists.most_tiles);
}

}  // namespace litecache::ops::cuda
