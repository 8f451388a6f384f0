#include "ops/attention/attention_cpu.h"

#include <algorithm>
#include <span>
#include <vector>

#include "ops/attention/attention_block_cpu.h"
#include "ops/attention/kept_blocks.h"
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

// Query heads [q_head, q_head + heads) of one KV head in one sequence: their queries are numbered i
// = token * heads + head. A task is a block of them over a range of KV rows that starts at a tile.
struct Task {
  const KvSequence* sequence;
  int64_t head;  // KV head
  int64_t q_head, heads;
  int64_t first_query, queries;
  int64_t begin, end;  // KV rows
  int64_t partial;     // offset of its partial result, or -1: the task writes the output itself

  int64_t Token(int64_t i) const { return (first_query + i) / heads; }
  int64_t QHead(int64_t i) const { return q_head + (first_query + i) % heads; }
};

struct Problem {
  AttentionShape shape;
  KvGeometry geometry;
  MatrixView q, out;
  int64_t group;
  const KeptBlocks* kept;  // null: all

  // The task's i-th query in `matrix`, which is q or out.
  float* Query(const MatrixView& matrix, const Task& task, int64_t i) const {
    return matrix.Row<float>(task.sequence->first_row + task.Token(i)) +
           task.QHead(i) * geometry.head_dim;
  }
  const uint32_t* KeptOf(const Task& task, int64_t i) const {
    return kept->Of(task.QHead(i), task.Token(i) / kept->query_rows);
  }
};

bool BitOf(const uint32_t* bits, int64_t i) { return (bits[i / 32] >> i % 32 & 1) != 0; }

// A tile of a task's rows, from row `begin` on.
struct TaskTile {
  int64_t begin;
  bool masked;  // some of the task's queries do not attend all of it
};
static_assert(KeptBlocks::kRows % kTileRows == 0, "a tile is in one block");

// The tiles that any of a task's queries attends.
std::span<const TaskTile> TilesOf(const Problem& p, const Task& task) {
  static thread_local std::vector<TaskTile> tiles;
  static thread_local std::vector<uint32_t> any, all;
  const auto words = static_cast<size_t>(CeilDiv(task.end, KeptBlocks::kRows * 32));
  any.assign(words, p.kept == nullptr ? ~0u : 0);
  all.assign(words, ~0u);
  for (int64_t i = 0; p.kept != nullptr && i < task.queries; ++i) {
    const uint32_t* bits = p.KeptOf(task, i);
    for (size_t w = 0; w < words; ++w) {
      any[w] |= bits[w];
      all[w] &= bits[w];
    }
  }
  const int64_t seen = task.sequence->past + task.Token(0) + 1;  // by the first query
  tiles.clear();
  for (int64_t begin = task.begin; begin < task.end; begin += kTileRows) {
    const int64_t block = begin / KeptBlocks::kRows;
    if (!BitOf(any.data(), block)) continue;
    const bool causal = std::min(begin + kTileRows, task.end) > seen;
    tiles.push_back({begin, causal || !BitOf(all.data(), block)});
  }
  return tiles;
}

// Addresses of the rows of a task's tiles.
class TileCursor {
 public:
  TileCursor(const Problem& problem, const Task& task, std::span<const TaskTile> tiles)
      : problem_(problem), task_(task), tiles_(tiles) {}

  int64_t Next(TileRows& tile) {
    if (tiles_.empty()) return 0;
    const int64_t begin = tiles_.front().begin;
    const int64_t end = std::min(begin + kTileRows, task_.end);
    tiles_ = tiles_.subspan(1);
    const auto row_bytes = static_cast<int64_t>(problem_.geometry.row_bytes());
    ForEachRun(problem_.geometry, *task_.sequence, task_.head, begin, end,
               [&](const std::byte* rows, int64_t first, int64_t count) {
                 for (int64_t i = 0; i < count; ++i) {
                   tile[static_cast<size_t>(first + i)] = rows + i * row_bytes;
                 }
               });
    return end - begin;
  }

 private:
  const Problem& problem_;
  const Task& task_;
  std::span<const TaskTile> tiles_;  // left
};

// Runs a task's KV rows through its queries.
AttentionBlock Attend(const Problem& p, const Task& task) {
  static thread_local Scratch query_scratch;
  const int64_t d = p.geometry.head_dim;
  auto* queries = query_scratch.Reserve<float>(static_cast<size_t>(task.queries * d));
  for (int64_t i = 0; i < task.queries; ++i) {
    std::copy_n(p.Query(p.q, task, i), d, queries + i * d);
  }
  const std::span<const TaskTile> tiles = TilesOf(p, task);
  const bool masked =
      std::any_of(tiles.begin(), tiles.end(), [](const TaskTile& tile) { return tile.masked; });
  AttentionBlock block(p.shape, queries, task.queries, task.sequence->rows == 1 && !masked);
  AddAll(block, TileCursor(p, task, tiles), [&](int64_t first, int64_t) -> const int32_t* {
    static thread_local std::vector<int32_t> limits;
    // All tiles before this one are full: only the task's last rows may be fewer.
    const TaskTile& tile = tiles[static_cast<size_t>(first / kTileRows)];
    if (!tile.masked) return nullptr;
    limits.resize(static_cast<size_t>(p.shape.max_queries()));
    for (size_t l = 0; l < limits.size(); ++l) {
      const int64_t i = std::min(static_cast<int64_t>(l), task.queries - 1);
      const bool kept =
          p.kept == nullptr || BitOf(p.KeptOf(task, i), tile.begin / KeptBlocks::kRows);
      // A query attends the rows up to its own token.
      const int64_t seen = kept ? task.sequence->past + task.Token(i) + 1 - tile.begin : 0;
      limits[l] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, kTileRows));
    }
    return limits.data();
  });
  return block;
}

struct Plan {
  std::vector<Task> tasks;
  int64_t partials = 0;  // floats
};

// Adds the tasks of the query heads [q_head, q_head + heads). split: KV rows of a task.
void AddTasks(const Problem& p, const KvSequence& sequence, int64_t q_head, int64_t heads,
              int64_t split, Plan* plan) {
  const int64_t block = p.shape.max_queries(), queries = sequence.rows * heads;
  const bool partial = split < sequence.past + sequence.rows;
  for (int64_t first = 0; first < queries; first += block) {
    const int64_t count = std::min(block, queries - first);
    const int64_t seen = sequence.past + (first + count - 1) / heads + 1;
    for (int64_t begin = 0; begin < seen; begin += split) {
      plan->tasks.push_back({.sequence = &sequence,
                             .head = q_head / p.group,
                             .q_head = q_head,
                             .heads = heads,
                             .first_query = first,
                             .queries = count,
                             .begin = begin,
                             .end = std::min(begin + split, seen),
                             .partial = partial ? plan->partials : -1});
      if (partial) plan->partials += p.shape.PartialSize(count);
    }
  }
}

Plan MakePlan(const Problem& p, std::span<const KvSequence> sequences) {
  Plan plan;
  for (const KvSequence& sequence : sequences) {
    const int64_t context = sequence.past + sequence.rows;
    const bool one_block = sequence.rows * p.group <= p.shape.max_queries();
    int64_t split = context;
    if (one_block) {
      split = std::max(kMinSplitRows, CeilDiv(CeilDiv(context, kMaxSplits), kTileRows) * kTileRows);
    }
    // A group shares the reads of rows; but its heads keep different blocks, and a task goes
    // through all that any of its heads keeps.
    const int64_t heads = p.kept != nullptr && !one_block ? 1 : p.group;
    for (int64_t q_head = 0; q_head < p.geometry.kv_heads * p.group; q_head += heads) {
      AddTasks(p, sequence, q_head, heads, split, &plan);
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
               const MatrixView& q, int64_t q_heads, const Softmax& softmax, const MatrixView& out,
               const KeptBlocks* kept) {
  static thread_local Scratch partial_scratch, merge_scratch;
  const Problem p{.shape = AttentionShape(geometry.dtype, geometry.head_dim, softmax),
                  .geometry = geometry,
                  .q = q,
                  .out = out,
                  .group = q_heads / geometry.kv_heads,
                  .kept = kept};
  const auto sinks_of = [&](const Task& task) {
    return BlockSinks(softmax, task.q_head / task.heads, task.heads, task.first_query);
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
        block.Write(j, sinks, p.Query(p.out, task, j));
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
        std::copy_n(merged + j * d, d, p.Query(p.out, task, j));
      }
    }
    i = next;
  }
}

}  // namespace litecache::ops::cpu
