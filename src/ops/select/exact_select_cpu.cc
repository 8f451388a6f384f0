#include <algorithm>
#include <vector>

#include "ops/select/row_scores_cpu.h"
#include "ops/select/select_cpu.h"
#include "ops/select/softmax_jobs_cpu.h"

namespace litecache::ops::cpu {
namespace {

constexpr int64_t kPieceRows = 1024;  // rows a thread scores at a time

}  // namespace

void ExactSelect(ThreadPool& pool, int64_t group, std::span<ExactSelectWork> work) {
  if (work.empty()) return;
  // Each work item's queries, padded with zeros.
  const auto query_size = [&](const ExactSelectWork& w) {
    return static_cast<size_t>(group * PaddedDim(w.rows.format.head_dim));
  };
  std::vector<size_t> offsets;
  std::vector<float> queries;
  for (const ExactSelectWork& w : work) {
    const int64_t d = w.rows.format.head_dim;
    offsets.push_back(queries.size());
    queries.resize(queries.size() + query_size(w));
    for (int64_t j = 0; j < group; ++j) {
      std::copy_n(w.q + j * d, d,
                  queries.data() + offsets.back() + static_cast<size_t>(j * PaddedDim(d)));
    }
  }
  SelectBySoftmax(
      pool, work, group, kPieceRows,
      [&](const ExactSelectWork& w, int64_t begin, int64_t end, float* scores, int64_t stride) {
        const float* query = queries.data() + offsets[static_cast<size_t>(&w - work.data())];
        for (int64_t t = begin; t < end;) {
          const int64_t count = std::min(end - t, w.rows.page_tokens - t % w.rows.page_tokens);
          RowScores(w.rows.format, w.rows.Row(t), count, query, group, scores, stride);
          t += count;
          scores += count;
        }
      });
}

}  // namespace litecache::ops::cpu
