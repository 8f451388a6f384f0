// Scores that pass through a softmax over the candidates and are summed over a group's query heads.
#pragma once

#include "ops/common/soft_cap.cuh"
#include "ops/common/tensor_core.cuh"
#include "ops/select/litecache_select.cuh"

namespace litecache::ops::cuda {

// Scaled scores are clamped to this range, so that infinities are never subtracted.
constexpr float kLargestScore = 1.7014117e38f;  // half of the largest float
constexpr int kMaxSoftmaxGroup = 64;

// Maxima are of scores times log2 e.
struct SoftmaxShared {
  float warp_maximum[kTeamWarps][kMaxSoftmaxGroup];
  float warp_sum[kTeamWarps][kMaxSoftmaxGroup];
  float maximum[kMaxSoftmaxGroup], sum[kMaxSoftmaxGroup];  // in this block
  float team_maximum[kMaxSoftmaxGroup], factor[kMaxSoftmaxGroup];
};

// Called by all threads of a team once each warp has written its maximum and sum for every head;
// afterwards every block has the team's.
__device__ inline void CombineSoftmax(const ClusterTeam& team, int32_t group,
                                      SoftmaxShared* shared) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  for (int32_t j = warp; j < group; j += kTeamWarps) {
    const float of_warp = shared->warp_maximum[lane][j];
    const float maximum = WarpMax(of_warp);
    const float sum = WarpSum(shared->warp_sum[lane][j] * Exp2(of_warp - maximum));
    if (lane == 0) {
      shared->maximum[j] = maximum;
      shared->sum[j] = sum;
    }
  }
  team.Sync();
  for (int32_t j = warp; j < group; j += kTeamWarps) {
    const bool exists = lane < team.size;
    const float of_block = exists ? *team.Of(&shared->maximum[j], lane) : -kLargestScore;
    const float sum_of_block = exists ? *team.Of(&shared->sum[j], lane) : 0;
    const float maximum = WarpMax(of_block);
    const float sum = WarpSum(sum_of_block * Exp2(of_block - maximum));
    if (lane == 0) {
      shared->team_maximum[j] = maximum;
      shared->factor[j] = 1 / sum;
    }
  }
  __syncthreads();
}

// Products, for kHeads query heads at a time:
//   int kAtOnce
//     iterations of a warp with independent loads
//   size_t SharedBytes(group, head_dim)
//     bytes of the queries, padded to a multiple of kHeads
//   void Prepare(job, float* queries)
//     called by all threads
//   void operator()(job, queries, t, first_head, float (&s)[kHeads])
//     by a warp: q.k of tokens t + lane, t a multiple of 32; tokens outside of the job's are not
//     read. Called twice for each token, which takes less memory than keeping a group's scores.
template <int kHeads, class Products>
struct SoftmaxScorer {
  Products products;

  __device__ void Score(const ClusterTeam& team, const ScoreJob& job, std::byte* memory) const {
    auto* shared = reinterpret_cast<SoftmaxShared*>(memory);
    auto* queries = reinterpret_cast<float*>(memory + sizeof(SoftmaxShared));
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t group = job.shape.group;
    products.Prepare(job, queries);
    __syncthreads();
    const int32_t origin = job.first / kSelectBlock * kSelectBlock + warp * kSelectBlock;
    const float scale = job.scale * kLog2E;
    const auto scaled = [&](float s) {
      float x = s * scale;
      job.cap.Apply(x);
      return fmaxf(fminf(x, kLargestScore), -kLargestScore);
    };
    for (int32_t j0 = 0; j0 < group; j0 += kHeads) {
      float maximum[kHeads], sum[kHeads];
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        maximum[j] = -kLargestScore;
        sum[j] = 0;
      }
#pragma unroll Products::kAtOnce
      for (int32_t t = origin; t < job.last; t += kTeamThreads) {
        float s[kHeads];
        products(job, queries, t, j0, s);
        if (t + lane < job.first || t + lane >= job.last) continue;
#pragma unroll
        for (int j = 0; j < kHeads; ++j) {
          const float x = scaled(s[j]);
          const float higher = fmaxf(maximum[j], x);
          sum[j] = sum[j] * Exp2(maximum[j] - higher) + Exp2(x - higher);
          maximum[j] = higher;
        }
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        const float highest = WarpMax(maximum[j]);
        const float total = WarpSum(sum[j] * Exp2(maximum[j] - highest));
        if (lane == 0 && j0 + j < group) {
          shared->warp_maximum[warp][j0 + j] = highest;
          shared->warp_sum[warp][j0 + j] = total;
        }
      }
    }
    CombineSoftmax(team, group, shared);
#pragma unroll Products::kAtOnce
    for (int32_t t = origin; t < job.last; t += kTeamThreads) {
      float score = 0;
      for (int32_t j0 = 0; j0 < group; j0 += kHeads) {
        float s[kHeads];
        products(job, queries, t, j0, s);
#pragma unroll
        for (int j = 0; j < kHeads; ++j) {
          if (j0 + j >= group) continue;
          score = fmaf(Exp2(scaled(s[j]) - shared->team_maximum[j0 + j]), shared->factor[j0 + j],
                       score);
        }
      }
      if (t + lane >= job.first && t + lane < job.last) {
        job.keys[t + lane - job.first] = OrderedKey(score);
      }
    }
  }
};

// Chooses kHeads for the group and launches; make(std::integral_constant<int, kHeads>) makes the
// products.
template <class Make>
void LaunchSoftmaxSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                         const LiteCacheLayer& layer, const SelectQuery& query, void* scratch,
                         const Make& make, const SelectRange* ranges = nullptr) {
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxSoftmaxGroup, "a group of {}", shape.group);
  LC_CHECK(query.scale > 0, "scale {}", query.scale);
  const auto launch = [&](auto heads) {
    const auto products = make(heads);
    const size_t bytes = sizeof(SoftmaxShared) + products.SharedBytes(shape.group, shape.head_dim);
    LaunchSelect(stream, step, shape, layer, query,
                 SoftmaxScorer<decltype(heads)::value, decltype(make(heads))>{products}, bytes,
                 scratch, ranges);
  };
  if (shape.group == 1) {
    launch(std::integral_constant<int, 1>());
  } else if (shape.group <= 4) {
    launch(std::integral_constant<int, 4>());
  } else {
    launch(std::integral_constant<int, 8>());
  }
}

}  // namespace litecache::ops::cuda
