// Weights are loaded from memory directly into the registers of tensor core products: 16 bytes per
// lane and access, no shared memory, and few instructions per byte for any number of rows. (With
// FMAs, 8 rows would take more instructions than fit into the time of reading the weights.)
//
// mma.m16n8k16 multiplies 16 rows of x by 8 outputs over 16 elements of the depth. Lane 4 g + q
// holds outputs' row g (and x's rows g and g + 8) at depth slots 2q, 2q+1, 2q+8, 2q+9. The
// assignment of depth elements to slots is arbitrary as long as x and weights agree; so lane 4 g +
// q loads the 8 elements at k + 8 q, and they fill the four slots of two products, which together
// cover 32 elements of the depth.
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/vectors.cuh"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/gemv_parts.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kOutputs = 8;  // in one product
constexpr int kDepth = 32;   // elements of the depth that a warp processes in a step
constexpr int kChunk = 8;    // elements that a lane loads in a step: 16 bytes

// Loads 8 consecutive elements; those at `left` and beyond are zeros (aligned: all or none are
// loaded).
template <bool kAligned>
__device__ inline uint4 LoadChunk(const __nv_bfloat16* p, int left) {
  uint4 v = {0, 0, 0, 0};
  if constexpr (kAligned) {
    if (left > 0) v = __ldg(reinterpret_cast<const uint4*>(p));
  } else {
    const auto* bits = reinterpret_cast<const uint16_t*>(p);
    uint32_t pairs[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < left) pairs[i / 2] |= uint32_t{bits[i]} << (16 * (i % 2));
    }
    v = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
  return v;
}

// Weights are read once, so they should not evict x from the L1 cache.
__device__ inline uint4 LoadOnce(const __nv_bfloat16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// A block has kTiles * 8 outputs of one target; its warps take turns along the depth, kUnroll steps
// each, and their sums are added at the end. kUpper: x has more than 8 rows.
template <int kWarps, int kTiles, int kUnroll, bool kUpper, bool kAligned>
__global__ void __launch_bounds__(kWarps * 32) GemvKernel(const __grid_constant__ GemvArguments a) {
  const GemvTarget& target = TargetOf(a, static_cast<int32_t>(blockIdx.x));
  const int32_t first = (static_cast<int32_t>(blockIdx.x) - target.first) * kTiles * kOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int q = lane % 4;

  const __nv_bfloat16* w[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    // Beyond the last output its row is read again and the result is dropped.
    const int32_t row = min(first + j * kOutputs + g, target.outputs - 1);
    w[j] = target.weight + row * target.stride + q * kChunk;
  }
  const bool has0 = g < a.rows;
  const bool has8 = kUpper && g + 8 < a.rows;
  const __nv_bfloat16* x0 = a.x + (has0 ? g : 0) * a.x_stride + q * kChunk;
  const __nv_bfloat16* x8 = a.x + (has8 ? g + 8 : 0) * a.x_stride + q * kChunk;

  float sum[kTiles][4] = {};
  const auto multiply = [&](int32_t k, int left, const uint4(&weights)[kTiles]) {
    const uint4 zero = {0, 0, 0, 0};
    const uint4 low = has0 ? LoadChunk<kAligned>(x0 + k, left) : zero;
    const uint4 high = kUpper && has8 ? LoadChunk<kAligned>(x8 + k, left) : zero;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      GemvMultiply(sum[j], low.x, low.y, high.x, high.y, weights[j].x, weights[j].y);
      GemvMultiply(sum[j], low.z, low.w, high.z, high.w, weights[j].z, weights[j].w);
    }
  };
  constexpr int32_t kTurn = kUnroll * kDepth;
  for (int32_t k = warp * kTurn; k < a.depth; k += kWarps * kTurn) {
    uint4 weights[kUnroll][kTiles];
    if (kAligned && k + kTurn <= a.depth) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) weights[u][j] = LoadOnce(w[j] + k + u * kDepth);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) multiply(k + u * kDepth, kChunk, weights[u]);
    } else {
      for (int32_t step = k; step < k + kTurn && step < a.depth; step += kDepth) {
        const int left = a.depth - step - q * kChunk;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) weights[0][j] = LoadChunk<kAligned>(w[j] + step, left);
        multiply(step, left, weights[0]);
      }
    }
  }

  // Lane 4 g + q holds rows g (0, 1) and g + 8 (2, 3), outputs 2q and 2q + 1.
  constexpr int kHalves = kUpper ? 2 : 1;
  __shared__ float2 sums[kWarps][kTiles][kHalves][32];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    sums[warp][j][0][lane] = {sum[j][0], sum[j][1]};
    if constexpr (kUpper) sums[warp][j][1][lane] = {sum[j][2], sum[j][3]};
  }
  __syncthreads();
  // [tile][row][output] of a warp's sums, read as floats.
  constexpr int kSums = kTiles * kHalves * 64;
  const auto* flat = reinterpret_cast<const float*>(&sums[0][0][0][0]);
  for (int e = static_cast<int>(threadIdx.x); e < kSums; e += kWarps * 32) {
    const int row = e / kOutputs % (kHalves * 8);
    const int32_t output = first + e / (kHalves * 64) * kOutputs + e % kOutputs;
    if (row >= a.rows || output >= target.outputs) continue;
    float value = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) value += flat[i * kSums + e];
    if (target.bias != nullptr) value += target.bias[output];
    const int64_t at = row * target.y_stride + output;
    if (target.bf16_y) {
      static_cast<__nv_bfloat16*>(target.y)[at] = __float2bfloat16(value);
    } else {
      auto* y = static_cast<float*>(target.y) + at;
      *y = a.add ? *y + value : value;
    }
  }
}

template <int kWarps, int kTiles, int kUnroll, bool kAligned>
void Launch(CudaStream& stream, GemvArguments& a) {
  constexpr int32_t kBlockOutputs = kTiles * kOutputs;
  int32_t blocks = 0;
  for (int i = 0; i < a.count; ++i) {
    a.targets[i].first = blocks;
    blocks += (a.targets[i].outputs + kBlockOutputs - 1) / kBlockOutputs;
  }
  const auto grid = static_cast<unsigned>(blocks);
  if (a.rows > 8) {
    GemvKernel<kWarps, kTiles, kUnroll, true, kAligned>
        <<<grid, kWarps * 32, 0, stream.handle()>>>(a);
  } else {
    GemvKernel<kWarps, kTiles, kUnroll, false, kAligned>
        <<<grid, kWarps * 32, 0, stream.handle()>>>(a);
  }
  LC_CUDA_LAUNCHED();
}

}  // namespace

void Gemv(Stream& stream, const MatrixView& x, std::span<const LinearPart> targets,
          Epilogue epilogue) {
  GemvArguments a = MakeGemvArguments(x, targets, epilogue);
  bool aligned = Aligned(x, kChunk);
  int64_t outputs = 0;
  for (const LinearPart& target : targets) {
    aligned = aligned && (target.weight.rows == 0 || Aligned(target.weight, kChunk));
    outputs += target.weight.rows;
  }
  if (a.count == 0) return;
  CudaStream& cuda = AsCuda(stream);
  // Enough warps that every SM has its share of the memory bandwidth in flight (some 32 KiB each):
  // with few outputs, the depth is split over more warps.
  const int64_t tiles_an_sm = outputs / kOutputs / cuda.sm_count();
  if (!aligned) {
    Launch<8, 1, 4, false>(cuda, a);
  } else if (tiles_an_sm >= 16) {
    Launch<4, 2, 4, true>(cuda, a);
  } else if (tiles_an_sm >= 2) {
    Launch<8, 1, 8, true>(cuda, a);
  } else {
    Launch<16, 1, 8, true>(cuda, a);
  }
}

}  // namespace litecache::ops::cuda
