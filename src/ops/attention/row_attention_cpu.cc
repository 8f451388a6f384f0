#include "ops/attention/row_attention_cpu.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "ops/attention/attention_block_cpu.h"
#include "ops/common/row_address.h"
#include "ops/common/scratch.h"

namespace litecache::ops::cpu {
namespace {

// Heads are split into pieces of at least this many rows, at most kMaxPieces of them: this way two
// heads keep many threads busy, and a piece of 256 rows (4 us) is worth its merge. The split
// depends only on the head's number of rows, and so do its results.
constexpr int64_t kMinPieceRows = 256;
constexpr int64_t kMaxPieces = 16;

// Query heads of a group, first_query on, over the rows [begin, end) of all parts together.
struct RowsTask {
  const RowAttentionHead* head;
  int64_t first_query, queries;
  int64_t begin, end;
  int64_t merge;    // index of its Merge, or -1: the task writes the output itself
  int64_t partial;  // index of its partial result
};

// The pieces of one block of queries, followed by the states passed in with the head; the thread
// that finishes the last piece merges them.
struct Merge {
  int64_t first_partial, pieces;
};

// Converts queries [first, first + count) of a state of `group` queries to a partial result.
void CopyState(const float* state, int64_t group, int64_t d, int64_t first, int64_t count,
               float* partial) {
  std::copy_n(state + first, count, partial);
  std::copy_n(state + group + first, count, partial + count);
  std::copy_n(state + 2 * group + first * d, count * d, partial + 2 * count);
}

// Numbers of unfinished pieces, one for each Merge; only grows.
class PieceCounters {
 public:
  std::atomic<int64_t>& operator[](int64_t i) { return counters_[static_cast<size_t>(i)]; }
  void Resize(size_t count) {
    if (count <= size_) return;
    counters_ = std::make_unique<std::atomic<int64_t>[]>(2 * count);
    size_ = 2 * count;
  }

 private:
  std::unique_ptr<std::atomic<int64_t>[]> counters_;
  size_t size_ = 0;
};

// Addresses of the rows [begin, end) of a head's parts, tile after tile.
class PartCursor {
 public:
  PartCursor(std::span<const RowPart> parts, int64_t begin, int64_t end)
      : part_(parts.data()), skip_(begin), left_(end - begin) {}

  int64_t Next(TileRows& tile) {
    const int64_t wanted = std::min(left_, kTileRows);
    for (int64_t filled = 0; filled < wanted;) {
      if (skip_ >= part_->count) {
        skip_ -= part_->count;
        ++part_;
        continue;
      }
      const int64_t count = std::min(wanted - filled, part_->count - skip_);
      const RowAddress address(part_->rows);
      const std::byte** out = tile.data() + filled;
      if (part_->indices != nullptr) {
        const int32_t* indices = part_->indices + skip_;
        for (int64_t i = 0; i < count; ++i) out[i] = address(indices[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = address(part_->begin + skip_ + i);
      }
      filled += count;
      skip_ += count;
    }
    left_ -= wanted;
    return wanted;
  }

 private:
  const RowPart* part_;
  int64_t skip_;  // rows of *part_ already consumed
  int64_t left_;
};

int64_t PieceRows(int64_t rows) {
  const int64_t even = (rows + kMaxPieces - 1) / kMaxPieces;
  return std::max(kMinPieceRows, (even + kTileRows - 1) / kTileRows * kTileRows);
}

}  // namespace

void RowAttention(ThreadPool& pool, const RowFormat& format, int64_t group,
                  std::span<const RowAttentionHead> heads, const Softmax& softmax) {
  static thread_local Scratch partial_scratch;
  static thread_local std::vector<RowsTask> task_scratch;
  static thread_local std::vector<Merge> merge_scratch;
  static thread_local PieceCounters left_scratch;
  const AttentionShape shape(format.encoding == RowEncoding::kBF16 ? DType::kBF16 : DType::kF32,
                             format.head_dim, softmax);
  const int64_t d = format.head_dim;
  const int64_t block = std::min(group, shape.max_queries());
  // References, because the worker threads' own thread_local objects are different ones.
  std::vector<RowsTask>& tasks = task_scratch;
  std::vector<Merge>& merges = merge_scratch;
  PieceCounters& left = left_scratch;
  tasks.clear();
  merges.clear();
  int64_t partials = 0;
  for (const RowAttentionHead& head : heads) {
    int64_t rows = 0;
    for (const RowPart& part : head.parts) rows += part.count;
    const int64_t piece = PieceRows(rows);
    for (int64_t first = 0; first < group; first += block) {
      const bool split = piece < rows || head.state_count > 0;
      if (split) {
        merges.push_back({.first_partial = partials, .pieces = (rows + piece - 1) / piece});
      }
      for (int64_t begin = 0; begin < rows; begin += piece) {
        tasks.push_back({.head = &head,
                         .first_query = first,
                         .queries = std::min(block, group - first),
                         .begin = begin,
                         .end = std::min(begin + piece, rows),
                         .merge = split ? static_cast<int64_t>(merges.size()) - 1 : -1,
                         .partial = split ? partials++ : -1});
      }
      partials += head.state_count;
    }
  }
  left.Resize(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    left[static_cast<int64_t>(i)].store(merges[i].pieces, std::memory_order_relaxed);
  }
  const int64_t partial_size = shape.PartialSize(block);
  auto* partial_data = partial_scratch.Reserve<float>(static_cast<size_t>(partials * partial_size));
  pool.ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end, int) {
    static thread_local Scratch query_scratch;
    for (int64_t i = begin; i < end; ++i) {
      const RowsTask& task = tasks[static_cast<size_t>(i)];
      auto* queries = query_scratch.Reserve<float>(static_cast<size_t>(task.queries * d));
      std::copy_n(task.head->q + task.first_query * d, task.queries * d, queries);
      AttentionBlock attention(shape, queries, task.queries, true);
      AddAll(attention, PartCursor(task.head->parts, task.begin, task.end),
             [](int64_t, int64_t) { return nullptr; });
      float* out = task.head->out + task.first_query * d;
      const BlockSinks sinks(softmax, task.head->first_query / group, group, task.first_query);
      if (task.merge < 0) {
        for (int64_t j = 0; j < task.queries; ++j) attention.Write(j, sinks, out + j * d);
        continue;
      }
      attention.WritePartial(partial_data + task.partial * partial_size);
      if (left[task.merge].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
      const Merge& merge = merges[static_cast<size_t>(task.merge)];
      float* first = partial_data + merge.first_partial * partial_size;
      for (int64_t s = 0; s < task.head->state_count; ++s) {
        CopyState(task.head->states + s * StateSize(group, d), group, d, task.first_query,
                  task.queries, first + (merge.pieces + s) * partial_size);
      }
      MergePartials(shape, first, merge.pieces + task.head->state_count, task.queries, partial_size,
                    sinks, out);
    }
  });
}

}  // namespace litecache::ops::cpu
