// y of a row for all of its experts at once: a block has 8 outputs, and its warps divide the depths
// of all the row's pairs, so that the sum over them needs neither another kernel nor atomics.
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/expert_address.cuh"
#include "ops/experts/expert_biases_cuda.h"
#include "ops/experts/row_products.cuh"
#include "ops/experts/row_products_cuda.h"

namespace litecache::ops::cuda {
namespace {

using namespace row_products;

constexpr int kRing = 4;  // units in flight of a warp

struct DownArguments {
  const __nv_bfloat16* h;
  int64_t h_stride;
  const int32_t* experts;
  const float* weights;
  int32_t active;
  const void* const* data;
  int64_t stride;
  ExpertBiases biases;
  int32_t outputs, depth;
  float* y;
  int64_t y_stride;
};

// A position in the pairs' units, which follow each other; warps have them in turn.
struct Position {
  int32_t pair, k;

  // end: a pair's depth in whole units.
  __device__ void Advance(int32_t by, int32_t end) {
    k += by;
    while (k >= end) {
      k -= end;
      ++pair;
    }
  }
};

template <int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    DownPairsKernel(const __grid_constant__ DownArguments a) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, q = lane % 4;
  const auto row = static_cast<int32_t>(blockIdx.y);
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kGroup;
  // The routing was written before the kernel that writes h, which has waited for it. It may have
  // been in the L1 cache at an earlier layer.
  __shared__ const __nv_bfloat16* matrices[kMostActiveExperts];
  __shared__ float weights[kMostActiveExperts];
  __shared__ int32_t experts[kMostActiveExperts];
  static_assert(kWarps * 32 >= kMostActiveExperts);
  const auto own = static_cast<int>(threadIdx.x);
  const int32_t expert =
      own < a.active ? __ldcg(a.experts + row * a.active + own) : Routing::kElsewhere;
  if (expert != Routing::kElsewhere) {
    matrices[own] = static_cast<const __nv_bfloat16*>(AddressOf(a.data, expert));
    experts[own] = expert;
    weights[own] = __ldcg(a.weights + row * a.active + own);
  }
  const int32_t active = __syncthreads_count(expert != Routing::kElsewhere ? 1 : 0);

  // Beyond the last output its row is read again and the result is dropped.
  const int64_t offset = min(first + g, a.outputs - 1) * a.stride + q * kChunk;
  const int32_t depth = a.depth - q * kChunk;  // from the lane's first element
  const int32_t units = (a.depth + kUnit - 1) / kUnit, end = units * kUnit;
  constexpr int32_t kTurn = kWarps * kUnit;
  Position load = {0, 0};
  load.Advance(warp * kUnit, end);
  Position ahead = load;
  const auto load_weights = [&](UnitRow& unit) {
    const bool has = load.pair < active;
    unit = LoadWeights(matrices[has ? load.pair : 0] + offset, load.k, has ? depth - load.k : 0);
    load.Advance(kTurn, end);
  };
  UnitRow ring[kRing];
#pragma unroll
  for (int r = 0; r < kRing; ++r) load_weights(ring[r]);
  // The thread that writes an output adds the biases of all pairs.
  const auto output = static_cast<int32_t>(threadIdx.x);
  const bool writes = output < kGroup && first + output < a.outputs;
  float total = 0;
  if (writes && a.biases.data != nullptr) {
#pragma unroll 4
    for (int32_t i = 0; i < active; ++i) {
      total = fmaf(weights[i], a.biases.At(experts[i], first + output), total);
    }
  }
  WaitForKernelBefore();

  // x is loaded a unit ahead, with its weight.
  const __nv_bfloat16* const h = a.h + int64_t{row} * a.active * a.h_stride + q * kChunk;
  float next_weight;
  const auto load_x = [&] {
    const bool has = ahead.pair < active;
    const int32_t pair = has ? ahead.pair : 0;
    next_weight = has ? weights[pair] : 0;
    const UnitRow x = LoadX(h + pair * a.h_stride, ahead.k, has && g == 0 ? depth - ahead.k : 0);
    ahead.Advance(kTurn, end);
    return x;
  };
  UnitRow next = load_x();
  float sum[2] = {};
  for (int32_t unit = warp; unit < active * units; unit += kRing * kWarps) {
#pragma unroll
    for (int r = 0; r < kRing; ++r) {
      const UnitRow x = next;
      const float weight = next_weight;
      next = load_x();
      float part[4] = {};
      MultiplyUnit(part, x, {}, ring[r]);
      load_weights(ring[r]);
      sum[0] = fmaf(weight, part[0], sum[0]);
      sum[1] = fmaf(weight, part[1], sum[1]);
    }
  }
  LetNextKernelStart();

  // Lane q holds the row's outputs 2 q and 2 q + 1.
  __shared__ float2 sums[kWarps][kGroup / 2];
  if (g == 0) sums[warp][q] = {sum[0], sum[1]};
  __syncthreads();
  if (!writes) return;
  const auto* const flat = reinterpret_cast<const float*>(&sums[0][0]);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += flat[i * kGroup + output];
  a.y[row * a.y_stride + first + output] += total;
}

template <int kWarps, int kBlocks>
void Launch(CudaStream& stream, const DownArguments& a, int64_t rows) {
  const dim3 grid(static_cast<unsigned>((a.outputs + kGroup - 1) / kGroup),
                  static_cast<unsigned>(rows));
  LaunchOverlapping(stream, DownPairsKernel<kWarps, kBlocks>, grid, kWarps * 32, 0, a);
}

}  // namespace

void DownPairs(CudaStream& stream, const MatrixView& h, const Routing& routing,
               const ExpertMatrices& down, const MatrixView& y) {
  LC_CHECK(h.dtype == DType::kBF16 && down.type.dtype == DType::kBF16 && y.dtype == DType::kF32 &&
           Aligned(h, kChunk) && down.type.stride % kChunk == 0 && h.cols == down.type.cols &&
           y.cols == down.type.rows && h.rows == y.rows * routing.active);
  LC_CHECK(h.cols >= 1 && h.cols <= INT32_MAX / 64 && y.cols <= INT32_MAX / 2);
  if (y.rows == 0 || y.cols == 0) return;
  const DownArguments a{.h = h.Row<const __nv_bfloat16>(0),
                        .h_stride = h.stride,
                        .experts = routing.experts,
                        .weights = routing.weights,
                        .active = static_cast<int32_t>(routing.active),
                        .data = down.data,
                        .stride = down.type.stride,
                        .biases = ExpertBiases::Of(down),
                        .outputs = static_cast<int32_t>(y.cols),
                        .depth = static_cast<int32_t>(h.cols),
                        .y = y.Row<float>(0),
                        .y_stride = y.stride};
  // With two blocks an SM or fewer, more warps of each keep the memory busy.
  const int64_t blocks = (y.cols + kGroup - 1) / kGroup * y.rows;
  if (blocks <= 2 * int64_t{stream.sm_count()}) {
    Launch<10, 2>(stream, a, y.rows);
  } else {
    Launch<5, 4>(stream, a, y.rows);
  }
}

}  // namespace litecache::ops::cuda
