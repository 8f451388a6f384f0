#include "ops/attention/attention_cpu.h"

#include <algorithm>
#include <vector>

#include "ops/attention/attention_block_cpu.h"
#include "ops/attention/kv_rows_cpu.h"
#include "ops/common/scratch.h"

namespace litecache::ops::cpu {
namespace {

// A single block of queries (decode) is split along the context, so that one long sequence keeps
// all threads busy. The splits depend only on the context's length, never on the number of threads,
// so neither do the results. There are at most kMaxSplits, which bounds the partial results.
constexpr int64_t kMinSplitRows = 512;
constexpr int64_t kMaxSplits = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Queries of one KV head in one sequence are numbered i = token * group + head in group. A task is
// a block of them over a range of KV rows.
struct Task {
  const KvSequence* sequence;
  int64_t head;
  int64_t first_query, queries;
  int64_t begin, end;  // KV rows
  int64_t partial;     // offset of its partial result, or -1: the task writes the output itself
};

struct Problem {
  AttentionShape shape;
  KvGeometry geometry;
  MatrixView q, out;
  int64_t group;

  // Query `i` of a sequence's KV head in `matrix`, which is q or out.
  float* Query(const MatrixView& matrix, const Task& task, int64_t i) const {
    return matrix.Row<float>(task.sequence->first_row + i / group) +
           (task.head * group + i % group) * geometry.head_dim;
  }
};

// Addresses of a task's rows, tile after tile.
class PageCursor {
 public:
  PageCursor(const Problem& problem, const Task& task)
      : problem_(problem), task_(task), begin_(task.begin) {}

  int64_t Next(TileRows& tile) {
    const int64_t end = std::min(begin_ + kTileRows, task_.end);
    const auto row_bytes = static_cast<int64_t>(problem_.geometry.row_bytes());
    ForEachRun(problem_.geometry, *task_.sequence, task_.head, begin_, end,
               [&](const std::byte* rows, int64_t first, int64_t count) {
                 for (int64_t i = 0; i < count; ++i) {
                   tile[static_cast<size_t>(first + i)] = rows + i * row_bytes;
                 }
               });
    const int64_t count = end - begin_;
    begin_ = end;
    return count;
  }

 private:
  const Problem& problem_;
  const Task& task_;
  int64_t begin_;
};

// Runs a task's KV rows through its queries.
AttentionBlock Attend(const Problem& p, const Task& task) {
  static thread_local Scratch query_scratch;
  const int64_t d = p.geometry.head_dim;
  auto* queries = query_scratch.Reserve<float>(static_cast<size_t>(task.queries * d));
  for (int64_t i = 0; i < task.queries; ++i) {
    std::copy_n(p.Query(p.q, task, task.first_query + i), d, queries + i * d);
  }
  const int64_t past = task.sequence->past;
  AttentionBlock block(p.shape, queries, task.queries, task.sequence->rows == 1);
  AddAll(block, PageCursor(p, task), [&](int64_t first, int64_t count) -> const int32_t* {
    static thread_local std::vector<int32_t> limits;
    // Query i of the block attends rows up to its own token; only tiles that extend beyond the
    // first query's token need the mask.
    const int64_t begin = task.begin + first;
    if (begin + count <= past + task.first_query / p.group + 1) return nullptr;
    limits.resize(static_cast<size_t>(p.shape.max_queries()));
    for (size_t l = 0; l < limits.size(); ++l) {
      const int64_t i = task.first_query + std::min(static_cast<int64_t>(l), task.queries - 1);
      limits[l] =
          static_cast<int32_t>(std::clamp<int64_t>(past + i / p.group + 1 - begin, 0, kTileRows));
    }
    return limits.data();
  });
  return block;
}

struct Plan {
  std::vector<Task> tasks;
  int64_t partials = 0;  // floats
};

Plan MakePlan(const Problem& p, std::span<const KvSequence> sequences) {
  Plan plan;
  const int64_t block = p.shape.max_queries();
  for (const KvSequence& sequence : sequences) {
    const int64_t queries = sequence.rows * p.group;
    const int64_t blocks = CeilDiv(queries, block);
    const int64_t context = sequence.past + sequence.rows;
    int64_t split = context;
    if (blocks == 1) {
      split = std::max(kMinSplitRows, CeilDiv(CeilDiv(context, kMaxSplits), kTileRows) * kTileRows);
    }
    const bool partial = split < context;
    for (int64_t head = 0; head < p.geometry.kv_heads; ++head) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = b * block;
        const int64_t count = std::min(block, queries - first);
        const int64_t seen = sequence.past + (first + count - 1) / p.group + 1;
        const int64_t size = partial ? p.shape.PartialSize(count) : 0;
        for (int64_t begin = 0; begin < seen; begin += split) {
          plan.tasks.push_back({.sequence = &sequence,
                                .head = head,
                                .first_query = first,
                                .queries = count,
                                .begin = begin,
                                .end = std::min(begin + split, seen),
                                .partial = partial ? plan.partials : -1});
          plan.partials += size;
        }
      }
    }
  }
  return plan;
}

}  // namespace

uint64_t AttentionScratchBytes(int64_t kv_heads, int64_t group, int64_t head_dim,
                               int64_t sequences) {
  // A decode sequence has `group` queries per KV head; the last part of a chunk has at most a block
  // of them.
  const int64_t block = F32GemmKernel().max_width();
  return static_cast<uint64_t>(kv_heads * kMaxSplits * (2 + head_dim) *
                               (sequences * group + block) * 4);
}

void Attention(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
               const MatrixView& q, int64_t q_heads, const Softmax& softmax,
               const MatrixView& out) {
  static thread_local Scratch partial_scratch, merge_scratch;
  const Problem p{.shape = AttentionShape(geometry.dtype, geometry.head_dim, softmax.scale),
                  .geometry = geometry,
                  .q = q,
                  .out = out,
                  .group = q_heads / geometry.kv_heads};
  const auto sinks_of = [&](const Task& task) {
    return BlockSinks(softmax, task.head, p.group, task.first_query);
  };
  const Plan plan = MakePlan(p, sequences);
  const int64_t d = geometry.head_dim;
  auto* partials = partial_scratch.Reserve<float>(static_cast<size_t>(plan.partials));
  const auto count = static_cast<int64_t>(plan.tasks.size());
  // In reverse order: causal blocks grow towards the end of a sequence, and the longest go first.
  pool.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Task& task = plan.tasks[static_cast<size_t>(count - 1 - i)];
      const AttentionBlock block = Attend(p, task);
      if (task.partial >= 0) {
        block.WritePartial(partials + task.partial);
        continue;
      }
      const BlockSinks sinks = sinks_of(task);
      for (int64_t j = 0; j < task.queries; ++j) {
        block.Write(j, sinks, p.Query(p.out, task, task.first_query + j));
      }
    }
  });
  // The splits of one block are adjacent; they are merged in order.
  for (size_t i = 0; i < plan.tasks.size();) {
    const Task& task = plan.tasks[i];
    size_t next = i + 1;
    if (task.partial >= 0) {
      while (next < plan.tasks.size() && plan.tasks[next].begin > 0) ++next;
      auto* merged = merge_scratch.Reserve<float>(static_cast<size_t>(task.queries * d));
      MergePartials(p.shape, partials + task.partial, static_cast<int64_t>(next - i), task.queries,
                    p.shape.PartialSize(task.queries), sinks_of(task), merged);
      for (int64_t j = 0; j < task.queries; ++j) {
        std::copy_n(merged + j * d, d, p.Query(p.out, task, task.first_query + j));
      }
    }
    i = next;
  }
}

}  // namespace litecache::ops::cpu
