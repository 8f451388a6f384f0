// Selections whose scores pass through a softmax for each query head.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "ops/dense/soft_cap_cpu.h"
#include "ops/select/group_softmax_cpu.h"
#include "ops/select/jobs_cpu.h"
#include "ops/select/need.h"
#include "ops/select/top_k_cpu.h"

namespace litecache::ops::cpu {

// For each work w (with w.selection, w.scale and perhaps w.cap): score(w, begin, end, scores,
// stride) writes the scores of candidates [begin, end) of head j to scores + j * stride (it may
// write up to kBlock - 1 floats before and after them); then their softmax is summed over the heads
// and the best are selected. adjust(w, sums) may change the candidates' sums before the selection.
// Pieces of `tokens`, a multiple of kBlock.
inline constexpr int64_t kSoftmaxBlock = 32;

struct AsTheyAre {};

template <class Work, class Score, class Adjust = AsTheyAre>
void SelectBySoftmax(ThreadPool& pool, std::span<Work> work, int64_t group, int64_t tokens,
                     const Score& score, const Adjust& adjust = {}) {
  const auto pieces_of = [&](const Work& w) {
    return TokenPieces{w.selection.begin, w.selection.end, tokens};
  };
  // A job's scratch: scores [group][stride] of tokens from `origin` on, then parts and factors.
  const auto origin_of = [](const Work& w) {
    return w.selection.begin / kSoftmaxBlock * kSoftmaxBlock;
  };
  const auto stride_of = [&](const Work& w) {
    return (w.selection.end - origin_of(w) + kSoftmaxBlock - 1) / kSoftmaxBlock * kSoftmaxBlock;
  };
  const auto parts_of = [&](const Work& w, float* scratch) {
    return reinterpret_cast<SoftmaxPart*>(scratch + group * stride_of(w));
  };
  std::vector<SelectJob> jobs;
  for (const Work& w : work) {
    const int64_t pieces = pieces_of(w).count();
    jobs.push_back(
        {pieces, static_cast<size_t>(group * (stride_of(w) + 3 * pieces) + kTopKPadding)});
  }
  RunSelectJobs(
      pool, jobs,
      [&](int64_t job, int64_t index, float* scratch) {
        const Work& w = work[static_cast<size_t>(job)];
        const int64_t begin = pieces_of(w).Begin(index), end = pieces_of(w).End(index);
        float* scores = scratch + (begin - origin_of(w));
        score(w, begin, end, scores, stride_of(w));
        for (int64_t j = 0; j < group; ++j) {
          float* const of_head = scores + j * stride_of(w);
          if constexpr (requires { w.cap; }) {
            if (w.cap != 0) SoftCap(of_head, end - begin, w.cap / w.scale);
          }
          parts_of(w, scratch)[index * group + j] = SoftmaxPiece(of_head, end - begin, w.scale);
        }
      },
      [&](int64_t job, float* scratch) {
        Work& w = work[static_cast<size_t>(job)];
        const TokenPieces pieces = pieces_of(w);
        SoftmaxPart* parts = parts_of(w, scratch);
        auto* factors = reinterpret_cast<float*>(parts + pieces.count() * group);
        SoftmaxFactors(parts, pieces.count(), group, factors);
        for (int64_t i = 0; i < pieces.count(); ++i) {
          float* scores = scratch + (pieces.Begin(i) - origin_of(w));
          SumHeads(scores, stride_of(w), group, factors + i * group,
                   pieces.End(i) - pieces.Begin(i), scores);
        }
        float* sums = scratch + (w.selection.begin - origin_of(w));
        if constexpr (std::is_same_v<Adjust, AsTheyAre>) {
          Selection& selection = w.selection;
          const int64_t n = selection.end - selection.begin, most = selection.k;
          if (selection.fewest > 0 && most < n) {
            const int64_t needed = CountReaching(sums, n, NeededScore(group, n));
            selection.k = std::clamp(needed, selection.fewest, most);
          }
          FinishPositive(sums, selection);
          selection.k = most;  // memory behind the sums is not needed at this point
        } else {
          adjust(w, sums);
          FinishSelection(sums, w.selection);
        }
      });
}

}  // namespace litecache::ops::cpu
