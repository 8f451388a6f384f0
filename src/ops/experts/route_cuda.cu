#include <cmath>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/experts/experts_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 4;  // of a block; a warp routes a row

struct RouteArguments {
  const float* logits;
  int64_t stride;
  int32_t rows, count, active, routed;
  int32_t first_own, own;
  bool normalized, sigmoid;
  float scale;
  const float* correction;  // null: scores are not corrected
  const float* scales;      // null: experts do not scale their weights
  const float* share;       // null: all of `active` are routed
  int64_t share_stride;
  int32_t* experts;
  float* weights;
};

// Keys of logits or corrected scores are ordered as these are and never 0. A NaN is above all
// numbers, so that it reaches the weights and does not pass unnoticed.
__device__ inline uint32_t KeyOf(float value) {
  if (isnan(value)) return UINT32_MAX;
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is equal to 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline float LogitOf(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

// Softmax's have yet to be divided by their sum. most: of the row's logits.
__device__ inline float ScoreOf(float logit, float most, bool sigmoid) {
  return sigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - most);
}

// Lane l holds the experts l, l + 32, ..., and of the chosen ones the l-th and the (l + 32)-th.
//
// kPlain: scores are softmax's, none is corrected, and weights are not scaled, as in most models.
// These have kernels of their own, which hold no corrections and find the chosen experts' logits in
// their keys. The others read them again, and branch as the arguments say: all threads alike.
template <int kHeld, bool kPlain>
__global__ void __launch_bounds__(kWarps * 32) RouteKernel(const RouteArguments a) {
  LetNextKernelStart();
  constexpr uint32_t kAll = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool sigmoid = !kPlain && a.sigmoid;
  const bool corrected = !kPlain && a.correction != nullptr;
  float corrections[kHeld] = {};
  if (corrected) {  // before the wait: they are weights, which no kernel writes
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int expert = j * 32 + lane;
      corrections[j] = expert < a.count ? a.correction[expert] : 0;
    }
  }
  WaitForKernelBefore();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;  // whole warps leave
  const float* const logits = a.logits + row * a.stride;
  uint32_t keys[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int expert = j * 32 + lane;
    keys[j] = expert < a.count ? KeyOf(logits[expert]) : 0;
  }
  uint32_t first = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) first = max(first, keys[j]);
  const float most = LogitOf(__reduce_max_sync(kAll, first));
  float all = 1;
  if (!sigmoid && (!a.normalized || corrected)) {
    all = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (keys[j] != 0) all += expf(LogitOf(keys[j]) - most);
    }
    all = LaneSum(all);
  }
  if (corrected) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (keys[j] == 0) continue;
      keys[j] = KeyOf(ScoreOf(LogitOf(keys[j]), most, sigmoid) / all + corrections[j]);
    }
  }

  constexpr int kChosen = kMostActiveExperts / 32;
  int32_t experts[kChosen] = {};
  float weights[kChosen] = {};
  for (int i = 0; i < a.routed; ++i) {
    uint32_t own = 0;
    int own_expert = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (keys[j] > own) {
        own = keys[j];
        own_expert = j * 32 + lane;
      }
    }
    const uint32_t key = __reduce_max_sync(kAll, own);
    const auto expert = static_cast<int32_t>(
        __reduce_min_sync(kAll, own == key ? static_cast<uint32_t>(own_expert) : kAll));
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (j * 32 + lane == expert) keys[j] = 0;
    }
#pragma unroll
    for (int c = 0; c < kChosen; ++c) {
      if (c * 32 + lane == i) {
        experts[c] = expert;
        if constexpr (kPlain) weights[c] = expf(LogitOf(key) - most);
      }
    }
  }
  if constexpr (!kPlain) {  // keys may be corrected scores
#pragma unroll
    for (int c = 0; c < kChosen; ++c) {
      if (c * 32 + lane < a.routed) weights[c] = ScoreOf(logits[experts[c]], most, sigmoid);
    }
  }
  float sum = all;
  if (a.normalized) {
    sum = 0;
#pragma unroll
    for (int c = 0; c < kChosen; ++c) sum += weights[c];
    sum = LaneSum(sum);
  }
  int32_t here = 0;
#pragma unroll
  for (int c = 0; c < kChosen; ++c) {
    const int32_t expert = experts[c] - a.first_own;
    const bool is_own = c * 32 + lane < a.routed && expert >= 0 && expert < a.own;
    const uint32_t ballot = __ballot_sync(kAll, is_own);
    if (is_own) {
      const int64_t at = row * a.active + here + __popc(ballot & ((1u << lane) - 1));
      a.experts[at] = expert;
      float weight = (kPlain ? weights[c] : a.scale * weights[c]) / sum;
      if (!kPlain && a.scales != nullptr) weight *= a.scales[experts[c]];
      a.weights[at] = weight;
    }
    here += __popc(ballot);
  }
  for (int32_t i = here + lane; i < a.routed; i += 32) {
    a.experts[row * a.active + i] = Routing::kElsewhere;
    a.weights[row * a.active + i] = 0;
  }
  if (a.share != nullptr && lane == 0) {
    a.experts[row * a.active + a.routed] = a.count;
    a.weights[row * a.active + a.routed] = 1.0f / (1.0f + expf(-a.share[row * a.share_stride]));
  }
}

template <bool kPlain, int kHeld = 1>
void Launch(CudaStream& stream, const RouteArguments& a) {
  if (a.count > kHeld * 32) {
    if constexpr (kHeld * 32 < kMostExperts) return Launch<kPlain, 2 * kHeld>(stream, a);
  }
  LaunchOverlapping(stream, RouteKernel<kHeld, kPlain>,
                    static_cast<unsigned>((a.rows + kWarps - 1) / kWarps), kWarps * 32, 0, a);
}

}  // namespace

void Route(Stream& stream, const MatrixView& logits, const Router& router, const Routing& routing,
           const MatrixView& share, const ExpertRange& own) {
  const bool shared = share.rows > 0;
  LC_CHECK(logits.rows * routing.active <= INT32_MAX / 2);
  const RouteArguments arguments = {
      .logits = logits.Row<const float>(0),
      .stride = logits.stride,
      .rows = static_cast<int32_t>(logits.rows),
      .count = static_cast<int32_t>(logits.cols),
      .active = static_cast<int32_t>(routing.active),
      .routed = static_cast<int32_t>(routing.active) - (shared ? 1 : 0),
      .first_own = static_cast<int32_t>(own.first),
      .own = static_cast<int32_t>(own.count),
      .normalized = router.normalized,
      .sigmoid = router.sigmoid,
      .scale = router.scale,
      .correction = router.correction,
      .scales = router.scales,
      .share = shared ? share.Row<const float>(0) : nullptr,
      .share_stride = share.stride,
      .experts = routing.experts,
      .weights = routing.weights};
  const bool plain = !router.sigmoid && router.scale == 1 && router.correction == nullptr &&
                     router.scales == nullptr;
  plain ? Launch<true>(AsCuda(stream), arguments) : Launch<false>(AsCuda(stream), arguments);
}

}  // namespace litecache::ops::cuda
