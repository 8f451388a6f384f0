#include <cmath>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/sample/arg_max_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kLoads = 8;  // in flight per thread: one block has to use the bandwidth of an SM

struct Best {
  float value = -INFINITY;
  int32_t id = INT32_MAX;
  bool finite = true;

  __device__ void Take(float other, int32_t other_id) {
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
};

__device__ inline Best WarpBest(Best best) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
    const int32_t id = __shfl_xor_sync(0xffffffffu, best.id, step);
    best.Take(value, id);
  }
  best.finite = __all_sync(0xffffffffu, best.finite);
  return best;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    ArgMaxKernel(const float* logits, int64_t stride, int32_t cols, int32_t* ids, int32_t* finite) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const float* row = logits + blockIdx.x * stride;
  const auto vectors = cols / kWidth;
  Best best;
  const auto take = [&](const Vector<float, kWidth>& v, int32_t vector) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      best.Take(v.at[i], vector * kWidth + i);
      best.finite = best.finite && isfinite(v.at[i]);
    }
  };
  int32_t v = static_cast<int32_t>(threadIdx.x);
  for (; v + (kLoads - 1) * kThreads < vectors; v += kLoads * kThreads) {
    Vector<float, kWidth> values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      values[i] = Load<kWidth>(row + int64_t{v + i * kThreads} * kWidth);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) take(values[i], v + i * kThreads);
  }
  for (; v < vectors; v += kThreads) take(Load<kWidth>(row + int64_t{v} * kWidth), v);

  __shared__ float values[kThreads / 32];
  __shared__ int32_t candidates[kThreads / 32];
  __shared__ bool all_finite[kThreads / 32];
  best = WarpBest(best);
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = best.value;
    candidates[threadIdx.x / 32] = best.id;
    all_finite[threadIdx.x / 32] = best.finite;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best.value = values[threadIdx.x];
  best.id = candidates[threadIdx.x];
  best.finite = all_finite[threadIdx.x];
  best = WarpBest(best);
  if (threadIdx.x != 0) return;
  ids[blockIdx.x] = best.id == INT32_MAX ? 0 : best.id;  // for a row of NaN
  finite[blockIdx.x] = best.finite ? 1 : 0;
}

}  // namespace

void ArgMax(Stream& stream, const MatrixView& logits, int32_t* ids, int32_t* finite) {
  LC_CHECK(logits.dtype == DType::kF32 && logits.cols >= 1 && logits.cols < INT32_MAX / 2);
  if (logits.rows == 0) return;
  const auto launch = [&]<int kWidth>() {
    LaunchOverlapping(AsCuda(stream), ArgMaxKernel<kWidth>, static_cast<unsigned>(logits.rows),
                      kThreads, 0, logits.Row<const float>(0), logits.stride,
                      static_cast<int32_t>(logits.cols), ids, finite);
  };
  Aligned(logits, 4) ? launch.operator()<4>() : launch.operator()<1>();
}

}  // namespace litecache::ops::cuda
