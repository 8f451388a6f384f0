#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/common/scratch.h"
#include "ops/select/bounds_cpu.h"
#include "ops/select/jobs_cpu.h"
#include "ops/select/select_cpu.h"
#include "ops/select/top_k_cpu.h"

namespace litecache::ops::cpu {
namespace {

constexpr int64_t kTokens = BoundsFormat::kTokens;
constexpr int64_t kGroup = BoundsFormat::kGroup;
constexpr int64_t kGroupTokens = BoundsFormat::kGroupTokens;
constexpr int64_t kPieceGroups = 16;  // groups a thread scores at a time

uint32_t* GroupOf(const BoundsFormat& format, const PagedMetadata& metadata, int64_t group) {
  const int64_t token = group * kGroupTokens;
  return reinterpret_cast<uint32_t*>(metadata.pages[token / metadata.page_tokens] +
                                     token % metadata.page_tokens / kGroupTokens *
                                         format.group_bytes());
}

void EncodeBlock(const BoundsFormat& format, const BoundsEncodeWork& w, int64_t block) {
  static thread_local Scratch scratch;
  const int64_t d = format.head_dim;
  float* low = scratch.Reserve<float>(static_cast<size_t>(2 * d));
  const int64_t begin = std::max(block * kTokens, w.begin);
  const int64_t end = std::min((block + 1) * kTokens, w.begin + w.count);
  MinMaxRows(w.keys + (begin - w.begin) * w.key_stride, w.key_stride, end - begin, d, low, low + d);
  StoreBounds(low, low + d, d, block % kGroup, begin % kTokens == 0,
              GroupOf(format, w.metadata, block / kGroup));
}

// From scores [heads][stride] of `blocks` blocks, selects the `count` blocks with the best rank
// over the heads, in ascending order. Ranks are by descending score, then by position.
void SelectBlocks(const float* scores, int64_t stride, int64_t heads, int64_t blocks, int64_t count,
                  std::vector<int32_t>& selected) {
  // No block beyond a head's first `count` can be selected.
  std::vector<int32_t> best(static_cast<size_t>(blocks), static_cast<int32_t>(count));
  std::vector<int32_t> order(static_cast<size_t>(count));
  for (int64_t j = 0; j < heads; ++j) {
    const float* of_head = scores + j * stride;
    TopK(of_head, blocks, count, 0, order.data());
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return of_head[a] > of_head[b] || (of_head[a] == of_head[a] && of_head[b] != of_head[b]);
    });
    for (int32_t rank = 0; rank < static_cast<int32_t>(count); ++rank) {
      int32_t& block = best[static_cast<size_t>(order[static_cast<size_t>(rank)])];
      block = std::min(block, rank);
    }
  }
  std::vector<int64_t> of_rank(static_cast<size_t>(count) + 1);
  for (int32_t rank : best) ++of_rank[static_cast<size_t>(rank)];
  int32_t last = 0;  // how many blocks of the last rank are selected, the lower ones first
  int64_t left = count;
  while (left > of_rank[static_cast<size_t>(last)]) left -= of_rank[static_cast<size_t>(last++)];
  selected.clear();
  for (int64_t b = 0; b < blocks; ++b) {
    const int32_t rank = best[static_cast<size_t>(b)];
    if (rank < last || (rank == last && left-- > 0)) selected.push_back(static_cast<int32_t>(b));
  }
}

}  // namespace

void BoundsEncode(ThreadPool& pool, const BoundsFormat& format,
                  std::span<const BoundsEncodeWork> work) {
  struct Block {
    const BoundsEncodeWork* work;
    int64_t index;
  };
  std::vector<Block> blocks;
  for (const BoundsEncodeWork& w : work) {
    for (int64_t b = w.begin / kTokens; b * kTokens < w.begin + w.count; ++b) {
      blocks.push_back({&w, b});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(blocks.size()), kGroup,
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       const Block& block = blocks[static_cast<size_t>(i)];
                       EncodeBlock(format, *block.work, block.index);
                     }
                   });
}

void BoundsSelect(ThreadPool& pool, const BoundsFormat& format, int64_t group,
                  std::span<BoundsSelectWork> work) {
  const int64_t d = format.head_dim;
  const auto job_count = static_cast<int64_t>(work.size());
  std::vector<float> signs(static_cast<size_t>(2 * job_count * group * d));
  const auto positive_of = [&](int64_t job) { return signs.data() + 2 * job * group * d; };
  const auto first_group = [](const Selection& s) { return s.begin / kGroupTokens; };
  const auto groups_of = [&](const Selection& s) {
    return (s.end - 1) / kGroupTokens + 1 - first_group(s);
  };
  std::vector<SelectJob> jobs;
  for (int64_t j = 0; j < job_count; ++j) {
    const BoundsSelectWork& w = work[static_cast<size_t>(j)];
    float* positive = positive_of(j);
    for (int64_t i = 0; i < group * d; ++i) {
      positive[i] = std::max(w.q[i], 0.0f);
      positive[group * d + i] = std::min(w.q[i], 0.0f);
    }
    const int64_t groups = groups_of(w.selection);
    jobs.push_back(
        {(groups + kPieceGroups - 1) / kPieceGroups, static_cast<size_t>(group * groups * kGroup)});
  }
  const auto score = [&](int64_t job, int64_t index, float* scores) {
    const BoundsSelectWork& w = work[static_cast<size_t>(job)];
    const int64_t groups = groups_of(w.selection);
    const float* positive = positive_of(job);
    const int64_t end = std::min(groups, (index + 1) * kPieceGroups);
    for (int64_t g = index * kPieceGroups; g < end; ++g) {
      BoundsScores(GroupOf(format, w.metadata, first_group(w.selection) + g), d, positive,
                   positive + group * d, group, scores + g * kGroup, groups * kGroup);
    }
  };
  const auto select = [&](int64_t job, float* scores) {
    static thread_local std::vector<int32_t> selected;
    Selection& s = work[static_cast<size_t>(job)].selection;
    const int64_t stride = groups_of(s) * kGroup;
    const int64_t first = s.begin / kTokens;
    const int64_t blocks = (s.end - 1) / kTokens + 1 - first;
    const float* of_first = scores + (first - first_group(s) * kGroup);
    if (s.scores != nullptr) {
      for (int64_t j = 0; j < group; ++j) {
        std::copy_n(of_first + j * stride, blocks, s.scores + j * blocks);
      }
    }
    const int64_t k = std::min(s.k, s.end - s.begin);
    const int64_t count =
        s.k >= s.end - s.begin ? blocks : std::clamp<int64_t>(k / kTokens, 1, blocks);
    SelectBlocks(of_first, stride, group, blocks, count, selected);
    s.count = 0;
    for (int32_t block : selected) {
      const int64_t end = std::min((first + block + 1) * kTokens, s.end);
      for (int64_t t = std::max((first + block) * kTokens, s.begin); t < end && s.count < k; ++t) {
        s.positions[s.count++] = static_cast<int32_t>(t);
      }
    }
  };
  RunSelectJobs(pool, jobs, score, select);
}

}  // namespace litecache::ops::cpu
