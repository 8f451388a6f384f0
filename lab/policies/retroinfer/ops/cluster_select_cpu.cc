#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "lab/policies/retroinfer/ops/clusters_cpu.h"
#include "ops/select/row_scores_cpu.h"
#include "ops/select/softmax_jobs_cpu.h"

namespace litecache::lab::ops::cpu {
namespace {

constexpr int64_t kPieceClusters = 1024;  // scored by a thread at a time

// A work item in the form that SelectBySoftmax takes.
struct Job {
  ClusterSelectWork* work;
  float scale;
  Selection selection;
  const float* query;  // [group][PaddedDim(head_dim)]
};

void Score(const Job& job, int64_t group, int64_t begin, int64_t end, float* scores,
           int64_t stride) {
  const ClusterSelectWork& w = *job.work;
  const PagedClusters& clusters = w.clusters;
  for (int64_t c = begin; c < end;) {
    const int64_t page = c / clusters.page_clusters, within = c % clusters.page_clusters;
    const int64_t count = std::min(end - c, clusters.page_clusters - within);
    float* out = scores + (c - begin);
    RowScores(clusters.format, clusters.Row(c), count, job.query, group, out, stride);
    const int32_t* sizes = clusters.Sizes(page) + within;
    for (int64_t j = 0; j < group; ++j) {
      float* logits = w.logits + j * w.count + c;
      for (int64_t i = 0; i < count; ++i) {
        logits[i] = out[j * stride + i] * w.scale;
        if (sizes[i] == 0) out[j * stride + i] = -std::numeric_limits<float>::infinity();
      }
    }
    c += count;
  }
}

// Ranks empty clusters after all others, however small their scores are.
void MaskEmpty(const Job& job, float* scores) {
  const ClusterSelectWork& w = *job.work;
  for (int64_t c = 0; c < w.count; ++c) {
    if (w.clusters.Size(c) == 0) scores[c] = -1;
  }
}

// Orders the selected clusters, which are ascending: the best `ranked` in order, then the others.
void Rank(const Job& job) {
  ClusterSelectWork& w = *job.work;
  int32_t* end = std::remove_if(w.ids, w.ids + job.selection.count,
                                [&](int32_t c) { return w.scores[c] < 0; });
  const int64_t count = end - w.ids;
  w.ranked_count = std::min(w.ranked, count);
  w.unranked_count = count - w.ranked_count;
  const auto better = [&](int32_t a, int32_t b) {
    return w.scores[a] > w.scores[b] || (w.scores[a] == w.scores[b] && a < b);
  };
  int32_t* middle = w.ids + w.ranked_count;
  std::partial_sort(w.ids, middle, end, better);
  std::sort(middle, end);
}

}  // namespace

void ClusterSelect(ThreadPool& pool, int64_t group, std::span<ClusterSelectWork> work) {
  if (work.empty()) return;
  std::vector<Job> jobs;
  std::vector<float> queries;
  std::vector<size_t> offsets;
  for (ClusterSelectWork& w : work) {
    const int64_t d = w.clusters.format.head_dim, padded = PaddedDim(d);
    offsets.push_back(queries.size());
    queries.resize(queries.size() + static_cast<size_t>(group * padded));
    for (int64_t j = 0; j < group; ++j) {
      std::copy_n(w.q + j * d, d, queries.data() + offsets.back() + j * padded);
    }
    jobs.push_back({&w,
                    w.scale,
                    {.begin = 0,
                     .end = w.count,
                     .k = std::min(w.ranked + w.unranked, w.count),
                     .positions = w.ids,
                     .scores = w.scores},
                    nullptr});
  }
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].query = queries.data() + offsets[i];
  SelectBySoftmax(
      pool, std::span(jobs), group, kPieceClusters,
      [&](const Job& job, int64_t begin, int64_t end, float* scores, int64_t stride) {
        Score(job, group, begin, end, scores, stride);
      },
      MaskEmpty);
  pool.ParallelFor(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) Rank(jobs[static_cast<size_t>(i)]);
  });
}

}  // namespace litecache::lab::ops::cpu
