#include <algorithm>
#include <limits>
#include <vector>

#include "lab/policies/infinigen/ops/infinigen_cpu.h"
#include "ops/select/jobs_cpu.h"
#include "ops/select/project_cpu.h"
#include "ops/select/projection_cpu.h"
#include "ops/select/top_k_cpu.h"

namespace litecache::lab::ops::cpu {
namespace {

constexpr int64_t kPieceTokens = 2048;  // tokens a thread scores at a time
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Converts the heads' scores [group][stride] and their maxima to margins; returns how many exceed
// -alpha.
int64_t Margins(const MarginScoreWork& w, int64_t group, const float* scores, int64_t stride,
                const float* best) {
  const int64_t n = w.end - w.begin;
  for (int64_t i = 0; i < n; ++i) w.margins[i] = w.scale * (scores[i] - best[0]);
  for (int64_t j = 1; j < group; ++j) {
    const float* head = scores + j * stride;
    for (int64_t i = 0; i < n; ++i) {
      w.margins[i] = std::max(w.margins[i], w.scale * (head[i] - best[j]));
    }
  }
  int64_t above = 0;
  for (int64_t i = 0; i < n; ++i) above += w.margins[i] > -w.alpha;
  return above;
}

}  // namespace

void MarginScore(ThreadPool& pool, const ProjectionFormat& format, int64_t group, int64_t head_dim,
                 std::span<MarginScoreWork> work) {
  const std::vector<float> queries = ProjectQueries(format, group, head_dim, work);
  const auto pieces_of = [](const MarginScoreWork& w) {
    return TokenPieces{w.begin, w.end, kPieceTokens};
  };
  // A job's scratch: scores [group][stride] of tokens from `origin` on, then each piece's best per
  // head, then the best of all.
  constexpr int64_t kBlock = ProjectionFormat::kBlockTokens;
  const auto origin_of = [](const MarginScoreWork& w) { return w.begin / kBlock * kBlock; };
  const auto stride_of = [&](const MarginScoreWork& w) {
    return (w.end - origin_of(w) + kBlock - 1) / kBlock * kBlock;
  };
  std::vector<SelectJob> jobs;
  for (const MarginScoreWork& w : work) {
    const int64_t pieces = pieces_of(w).count();
    jobs.push_back({pieces, static_cast<size_t>(group * (stride_of(w) + pieces + 1))});
  }
  RunSelectJobs(
      pool, jobs,
      [&](int64_t job, int64_t index, float* scratch) {
        const MarginScoreWork& w = work[static_cast<size_t>(job)];
        const int64_t begin = pieces_of(w).Begin(index), end = pieces_of(w).End(index);
        const int64_t stride = stride_of(w);
        float* scores = scratch + (begin - origin_of(w));
        PagedProjectionScores(format, w.metadata, begin, end,
                              queries.data() + job * group * 2 * format.pairs(), group, scores,
                              stride);
        float* best = scratch + group * (stride + index);
        for (int64_t j = 0; j < group; ++j) {
          best[j] = kNone;
          for (int64_t i = 0; i < end - begin; ++i) {
            best[j] = std::max(best[j], scores[j * stride + i]);
          }
        }
      },
      [&](int64_t job, float* scratch) {
        MarginScoreWork& w = work[static_cast<size_t>(job)];
        const int64_t stride = stride_of(w), pieces = pieces_of(w).count();
        const float* parts = scratch + group * stride;
        float* best = scratch + group * (stride + pieces);
        std::fill_n(best, group, kNone);
        for (int64_t i = 0; i < pieces; ++i) {
          for (int64_t j = 0; j < group; ++j) best[j] = std::max(best[j], parts[i * group + j]);
        }
        w.above = Margins(w, group, scratch + (w.begin - origin_of(w)), stride, best);
      });
}

void SelectTopRows(ThreadPool& pool, std::span<TopRowsWork> work) {
  pool.ParallelFor(static_cast<int64_t>(work.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      TopRowsWork& w = work[static_cast<size_t>(i)];
      FinishSelection(w.scores, w.selection);
    }
  });
}

}  // namespace litecache::lab::ops::cpu
