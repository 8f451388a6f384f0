#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/dense/norm_cuda.h"

namespace litecache::ops::cuda {
namespace {

// Vectors that a thread keeps in registers between the passes; the others are read again.
constexpr int kKept = 4;

struct NormArguments {
  const float* x;
  int64_t x_stride;
  const float* weight;
  // For the second half of y's rows, which are made from the same x as the first half.
  const float* second_weight;
  const float* bias;  // for LayerNorm; null: none
  float epsilon;
  uint32_t pieces, groups;  // pieces: rows of y * groups
  uint32_t first_rows;      // rows with the first weight
  int64_t n;                // columns in a group
  void* y;
  int64_t y_stride;
};

// The sum over a team of threads, in a fixed order; every thread gets the same bits.
template <int kTeam>
__device__ inline float TeamSum(float value) {
  value = LaneSum(value);
  if constexpr (kTeam > 32) {
    __shared__ float sums[kTeam / 32];
    __syncthreads();  // the previous sum has been read
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int i = 0; i < kTeam / 32; ++i) value += sums[i];
  }
  return value;
}

// A team of threads normalizes one group of one row. A team is a warp (several teams per block) or
// a block.
template <typename Out, int kTeam, int kThreads, int kWidth, bool kCentre>
__global__ void __launch_bounds__(kThreads) NormKernel(const NormArguments a) {
  LetNextKernelStart();
  static_assert(kTeam == 32 || kTeam == kThreads);
  const uint32_t piece = blockIdx.x * (kThreads / kTeam) + threadIdx.x / kTeam;
  const int64_t row = piece / a.groups;
  const int64_t offset = static_cast<int64_t>(piece % a.groups) * a.n;
  const bool second = row >= a.first_rows;
  const float* x = a.x + (second ? row - a.first_rows : row) * a.x_stride + offset;
  const float* all_weights = second && a.second_weight != nullptr ? a.second_weight : a.weight;
  Out* y = static_cast<Out*>(a.y) + row * a.y_stride + offset;
  const int64_t begin = static_cast<int64_t>(threadIdx.x % kTeam) * kWidth;
  constexpr int64_t kStep = int64_t{kTeam} * kWidth;

  // Weights are constant, so they are loaded while the previous kernel ends.
  Vector<float, kWidth> weights[kKept], kept[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t c = begin + k * kStep;
    if (c < a.n) weights[k] = Load<kWidth>(all_weights + c);
  }
  WaitForKernelBefore();
  if (piece >= a.pieces) return;  // whole teams leave
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t c = begin + k * kStep;
    if (c < a.n) kept[k] = Load<kWidth>(x + c);
  }
  // Calls body(c, elements at c, weights at c) for every vector of this thread.
  const auto for_each = [&](const auto& body) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int64_t c = begin + k * kStep;
      if (c < a.n) body(c, kept[k], weights[k]);
    }
    for (int64_t c = begin + kKept * kStep; c < a.n; c += kStep) {
      body(c, Load<kWidth>(x + c), Load<kWidth>(all_weights + c));
    }
  };

  float mean = 0;
  if constexpr (kCentre) {
    float sum = 0;
    for_each([&](int64_t, const Vector<float, kWidth>& v, const Vector<float, kWidth>&) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += v.at[i];
    });
    mean = TeamSum<kTeam>(sum) / static_cast<float>(a.n);
  }
  // Two passes: computed from a difference of sums, the variance would suffer from cancellation.
  float squares = 0;
  for_each([&](int64_t, const Vector<float, kWidth>& v, const Vector<float, kWidth>&) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float centred = v.at[i] - mean;
      squares = fmaf(centred, centred, squares);
    }
  });
  const float factor = 1.0f / sqrtf(TeamSum<kTeam>(squares) / static_cast<float>(a.n) + a.epsilon);
  for_each([&](int64_t c, const Vector<float, kWidth>& v, const Vector<float, kWidth>& weight) {
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = (v.at[i] - mean) * factor * weight.at[i];
    if (kCentre && a.bias != nullptr) {
      const Vector<float, kWidth> bias = Load<kWidth>(a.bias + c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += bias.at[i];
    }
    Store<kWidth>(y + c, values);
  });
}

template <typename Out, int kWidth, bool kCentre>
void Launch(Stream& stream, const NormArguments& a) {
  // A warp holds a narrow group in registers; a block hides the latency of a long row.
  constexpr int kNarrow = 512;
  CudaStream& cuda = AsCuda(stream);
  if (a.n <= kNarrow) {
    constexpr int kThreads = 128, kTeams = kThreads / 32;
    LaunchOverlapping(cuda, NormKernel<Out, 32, kThreads, kWidth, kCentre>,
                      (a.pieces + kTeams - 1) / kTeams, kThreads, 0, a);
  } else {
    LaunchOverlapping(cuda, NormKernel<Out, 512, 512, kWidth, kCentre>, a.pieces, 512, 0, a);
  }
}

template <bool kCentre>
void Norm(Stream& stream, const MatrixView& x, const float* weight, const float* second_weight,
          const float* bias, float epsilon, int64_t groups, const MatrixView& y) {
  const int64_t times = second_weight == nullptr ? 1 : 2;
  LC_CHECK(x.dtype == DType::kF32 && (y.dtype == DType::kF32 || y.dtype == DType::kBF16));
  LC_CHECK(times * x.rows == y.rows && x.cols == y.cols && groups >= 1 && x.cols % groups == 0,
           "x [{}, {}], y [{}, {}], {} groups", x.rows, x.cols, y.rows, y.cols, groups);
  if (x.rows == 0 || x.cols == 0) return;
  LC_CHECK(y.rows * groups < INT32_MAX);
  const NormArguments a{.x = x.Row<const float>(0),
                        .x_stride = x.stride,
                        .weight = weight,
                        .second_weight = second_weight,
                        .bias = bias,
                        .epsilon = epsilon,
                        .pieces = static_cast<uint32_t>(y.rows * groups),
                        .groups = static_cast<uint32_t>(groups),
                        .first_rows = static_cast<uint32_t>(x.rows),
                        .n = x.cols / groups,
                        .y = y.data,
                        .y_stride = y.stride};
  const bool wide = a.n % 4 == 0 && Aligned(x, 4) && Aligned(y, 4) && Aligned(weight, 4) &&
                    (second_weight == nullptr || Aligned(second_weight, 4)) &&
                    (bias == nullptr || Aligned(bias, 4));
  if (y.dtype == DType::kBF16) {
    wide ? Launch<__nv_bfloat16, 4, kCentre>(stream, a)
         : Launch<__nv_bfloat16, 1, kCentre>(stream, a);
  } else {
    wide ? Launch<float, 4, kCentre>(stream, a) : Launch<float, 1, kCentre>(stream, a);
  }
}

}  // namespace

void RmsNorm(Stream& stream, const MatrixView& x, const float* weight, float epsilon,
             int64_t groups, const MatrixView& y) {
  Norm<false>(stream, x, weight, nullptr, nullptr, epsilon, groups, y);
}

void RmsNormTwice(Stream& stream, const MatrixView& x, const float* first, const float* second,
                  float epsilon, const MatrixView& y) {
  LC_CHECK(second != nullptr);
  Norm<false>(stream, x, first, second, nullptr, epsilon, 1, y);
}

void LayerNorm(Stream& stream, const MatrixView& x, const float* weight, const float* bias,
               float epsilon, const MatrixView& y) {
  Norm<true>(stream, x, weight, nullptr, bias, epsilon, 1, y);
}

}  // namespace litecache::ops::cuda
