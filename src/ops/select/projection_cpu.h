// The vectorized part of scoring projected keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/select/project_cpu.h"
#include "ops/select/projection_select.h"

namespace litecache::ops::cpu {

// scores[j * stride + t] for the 32 tokens t of each of `blocks` blocks (32 floats apart), for
// `heads` query heads. query [heads][2 * pairs]: their components.
void ProjectionScores(const std::byte* data, int64_t blocks, int64_t pairs, const float* query,
                      int64_t heads, float* scores, int64_t stride);

// The same for tokens [begin, end) of paged metadata: token t of head j to scores[j * stride + t -
// begin]. Whole blocks are written: up to kBlockTokens - 1 floats before and after the range.
inline void PagedProjectionScores(const ProjectionFormat& format, const PagedMetadata& metadata,
                                  int64_t begin, int64_t end, const float* query, int64_t heads,
                                  float* scores, int64_t stride) {
  constexpr int64_t kBlock = ProjectionFormat::kBlockTokens;
  const int64_t page_tokens = metadata.page_tokens;
  scores -= begin % kBlock;
  for (int64_t t = begin / kBlock * kBlock; t < end;) {
    const int64_t in_page = t % page_tokens;
    const int64_t blocks = (std::min(end - t, page_tokens - in_page) + kBlock - 1) / kBlock;
    ProjectionScores(metadata.pages[t / page_tokens] + in_page / kBlock * format.block_bytes(),
                     blocks, format.pairs(), query, heads, scores, stride);
    t += blocks * kBlock;
    scores += blocks * kBlock;
  }
}

// Each work item's (with q and basis) components of the group's queries [work][group][2 * pairs],
// without the padding of the basis.
template <class Work>
std::vector<float> ProjectQueries(const ProjectionFormat& format, int64_t group, int64_t head_dim,
                                  const Work& work) {
  const int64_t components = 2 * format.pairs();
  std::vector<float> queries(work.size() * static_cast<size_t>(group * components));
  std::vector<float> projected(static_cast<size_t>(group * format.basis_stride()));
  for (size_t i = 0; i < work.size(); ++i) {
    Project(work[i].q, head_dim, group, head_dim, work[i].basis, format.basis_stride(),
            projected.data());
    for (int64_t j = 0; j < group; ++j) {
      std::copy_n(projected.data() + j * format.basis_stride(), components,
                  queries.data() + (static_cast<int64_t>(i) * group + j) * components);
    }
  }
  return queries;
}

}  // namespace litecache::ops::cpu
