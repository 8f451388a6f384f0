#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/attention_tile.h"
#include "ops/cpu/avx512.h"
#include "ops/cpu/gemm_kernel.h"
#include "ops/cpu/kv_rows.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/widen.h"

namespace litecache::ops::cpu {
namespace {

// KV rows a tile of scores holds: its scores (64 queries * 64 rows * 4 bytes) and V rows stay in
// the L1 and L2 cache.
constexpr int64_t kTileRows = 64;
// A single block of queries (decode) is split along the context, so that one long sequence keeps
// all threads busy. Pieces depend on the context's length only, never on the number of threads:
// results are the same for any. At most kMaxSplits of them: their partial results are bounded.
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
  int64_t partial;     // index of its partial result, or -1: it writes the output itself
};

struct Problem {
  GemmKernel kernel;
  bool pairs;  // the kernel multiplies bf16 pairs as they lie in the pages; otherwise bf16 is
               // widened
  KvGeometry geometry;
  MatrixView q, out;
  int64_t group;
  float scale;  // of scores in units of log2 e: probabilities are powers of two

  int64_t Width(int64_t queries) const { return CeilDiv(queries, kernel.lanes) * kernel.lanes; }
  // Floats of a partial result: maximum [width], sum [width], output [head_dim][width].
  int64_t PartialSize() const { return (2 + geometry.head_dim) * kernel.max_width(); }

  const float* Query(const Task& task, int64_t i) const {
    return q.Row<float>(task.sequence->first_row + i / group) +
           (task.head * group + i % group) * geometry.head_dim;
  }
  float* Output(const Task& task, int64_t i) const {
    return out.Row<float>(task.sequence->first_row + i / group) +
           (task.head * group + i % group) * geometry.head_dim;
  }
};

// A running softmax: out[c][l] is sum of p * V[c] for query l, all relative to `maximum`.
struct State {
  float* maximum;
  float* sum;
  float* out;
};

State StateAt(float* data, int64_t width) {
  return {.maximum = data, .sum = data + width, .out = data + 2 * width};
}

// ForEachRun of a task's head.
template <class Body>
void ForEachRun(const Problem& p, const Task& task, int64_t begin, int64_t end, const Body& body) {
  cpu::ForEachRun(p.geometry, *task.sequence, task.head, begin, end, body);
}

// A tile's KV rows in the form the kernel multiplies. K is read from the pages except where it has
// to be widened.
struct Tile {
  int64_t begin, rows;
  const float* widened;     // [rows][K | V], or null: K (and V of f32 rows) is read from the pages
  const uint32_t* v_pairs;  // [rows / 2][head_dim] interleaved V rows, or null
};

// Asks for the rows [begin, end) ahead of their use: pages lie anywhere, so the hardware's
// prefetchers lose the thread at every page's end.
void PrefetchRows(const Problem& p, const Task& task, int64_t begin, int64_t end) {
  ForEachRun(p, task, begin, end, [&](const std::byte* rows, int64_t, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(p.geometry.row_bytes());
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(rows + i, 0, 2);
  });
}

Tile PrepareTile(const Problem& p, const Task& task, int64_t begin, int64_t end) {
  static thread_local Scratch scratch;
  const int64_t d = p.geometry.head_dim;
  Tile tile{.begin = begin, .rows = end - begin, .widened = nullptr, .v_pairs = nullptr};
  if (p.geometry.dtype == DType::kF32) return tile;
  auto* data = scratch.Reserve<float>(static_cast<size_t>(kTileRows * 2 * d));
  if (!p.pairs) {
    ForEachRun(p, task, begin, end, [&](const std::byte* rows, int64_t first, int64_t count) {
      Widen(p.geometry.dtype, rows, count * 2 * d, data + first * 2 * d);
    });
    tile.widened = data;
    return tile;
  }
  auto* pairs = reinterpret_cast<uint32_t*>(data);
  std::array<const std::byte*, kTileRows> v_rows;
  ForEachRun(p, task, begin, end, [&](const std::byte* rows, int64_t first, int64_t count) {
    const auto row_bytes = static_cast<int64_t>(p.geometry.row_bytes());
    for (int64_t i = 0; i < count; ++i) {
      v_rows[static_cast<size_t>(first + i)] = rows + i * row_bytes + row_bytes / 2;
    }
  });
  Avx512InterleaveRows(v_rows.data(), tile.rows, d, pairs);
  tile.v_pairs = pairs;
  return tile;
}

// scores [rows][width] = K of the tile times the queries.
void Score(const Problem& p, const Task& task, const void* panel, int64_t vectors, const Tile& tile,
           float* scores) {
  const int64_t d = p.geometry.head_dim;
  const int64_t width = vectors * p.kernel.lanes;
  if (tile.widened != nullptr) {
    p.kernel.multiply(panel, vectors, d, tile.widened, 2 * d * 4, 4, tile.rows, false, scores);
    return;
  }
  ForEachRun(p, task, tile.begin, tile.begin + tile.rows,
             [&](const std::byte* rows, int64_t first, int64_t count) {
               p.kernel.multiply(panel, vectors, d, rows,
                                 static_cast<int64_t>(p.geometry.row_bytes()), 4, count, false,
                                 scores + first * width);
             });
}

// out [head_dim][width] += V of the tile times the probabilities.
void Accumulate(const Problem& p, const Task& task, const float* probabilities, int64_t vectors,
                const Tile& tile, float* out) {
  static thread_local Scratch scratch;
  const int64_t d = p.geometry.head_dim;
  const int64_t width = vectors * p.kernel.lanes;
  if (tile.v_pairs != nullptr) {
    auto* panel = scratch.Reserve<uint32_t>(static_cast<size_t>(kTileRows / 2 * width));
    Avx512PackPairs(probabilities, tile.rows, width, panel);
    // An odd last row has a zero beside it in both operands.
    p.kernel.multiply(panel, vectors, (tile.rows + 1) / 2 * 2, tile.v_pairs, 4, d * 4, d, true,
                      out);
    return;
  }
  if (tile.widened != nullptr) {
    p.kernel.multiply(probabilities, vectors, tile.rows, tile.widened + d, 4, 2 * d * 4, d, true,
                      out);
    return;
  }
  ForEachRun(p, task, tile.begin, tile.begin + tile.rows,
             [&](const std::byte* rows, int64_t first, int64_t count) {
               p.kernel.multiply(probabilities + first * width, vectors, count, rows + d * 4, 4,
                                 static_cast<int64_t>(p.geometry.row_bytes()), d, true, out);
             });
}

// Whether a task's queries are the heads of one token that Avx512DecodeTile takes.
bool IsDecode(const Problem& p, const Task& task) {
  return p.pairs && task.sequence->rows == 1 && p.group <= kMaxDecodeHeads &&
         p.geometry.head_dim % 32 == 0;
}

// Attend for such a task.
void AttendDecode(const Problem& p, const Task& task, const State& state) {
  static thread_local Scratch query_scratch, out_scratch;
  const int64_t d = p.geometry.head_dim;
  const int64_t heads = task.queries;
  const auto size = static_cast<size_t>(heads * d);
  auto* scaled = out_scratch.Reserve<float>(size);
  for (int64_t i = 0; i < heads * d; ++i) scaled[i] = p.Query(task, 0)[i] * p.scale;
  auto* queries = query_scratch.Reserve<bf16>(size);
  NarrowToBf16(scaled, heads * d, queries);

  float* out = scaled;
  std::fill(out, out + size, 0.0f);
  std::array<float, kMaxDecodeHeads> maximum, sum{};
  maximum.fill(-std::numeric_limits<float>::max());
  std::array<const std::byte*, kDecodeTileRows> rows;
  const auto row_bytes = static_cast<int64_t>(p.geometry.row_bytes());
  for (int64_t begin = task.begin; begin < task.end; begin += kDecodeTileRows) {
    const int64_t end = std::min(begin + kDecodeTileRows, task.end);
    PrefetchRows(p, task, end, std::min(end + kDecodeTileRows, task.end));
    ForEachRun(p, task, begin, end, [&](const std::byte* run, int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        rows[static_cast<size_t>(first + i)] = run + i * row_bytes;
      }
    });
    Avx512DecodeTile(rows.data(), end - begin, d, queries, heads, maximum.data(), sum.data(), out);
  }
  const int64_t width = p.Width(heads);
  std::copy_n(maximum.begin(), heads, state.maximum);
  std::copy_n(sum.begin(), heads, state.sum);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t c = 0; c < d; ++c) state.out[c * width + h] = out[h * d + c];
  }
}

// Runs a task's KV rows through its queries into `state`.
void Attend(const Problem& p, const Task& task, const State& state) {
  static thread_local Scratch query_scratch, panel_scratch, score_scratch, lane_scratch;
  const int64_t d = p.geometry.head_dim;
  const int64_t width = p.Width(task.queries);
  const int64_t vectors = width / p.kernel.lanes;
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };

  auto* queries = query_scratch.Reserve<float>(size(task.queries * d));
  for (int64_t i = 0; i < task.queries; ++i) {
    const float* source = p.Query(task, task.first_query + i);
    for (int64_t c = 0; c < d; ++c) queries[i * d + c] = source[c] * p.scale;
  }
  auto* panel = panel_scratch.Reserve<float>(size(d * width));
  p.kernel.pack(queries, d, task.queries, d, vectors, p.geometry.dtype == DType::kBF16, panel);

  auto* scores = score_scratch.Reserve<float>(size(kTileRows * width));
  auto* factor = lane_scratch.Reserve<float>(size(2 * width));
  auto* limits = reinterpret_cast<int32_t*>(factor + width);
  std::fill(state.maximum, state.maximum + width, -std::numeric_limits<float>::max());
  std::fill(state.sum, state.sum + width, 0.0f);
  std::fill(state.out, state.out + d * width, 0.0f);

  for (int64_t begin = task.begin; begin < task.end; begin += kTileRows) {
    const int64_t end = std::min(begin + kTileRows, task.end);
    PrefetchRows(p, task, end, std::min(end + kTileRows, task.end));
    const Tile tile = PrepareTile(p, task, begin, end);
    Score(p, task, panel, vectors, tile, scores);
    // Query i of the block sees rows up to its own token; only tiles that reach past the first
    // query's need the mask.
    const int64_t first_seen = task.sequence->past + task.first_query / p.group + 1;
    const bool mask = end > first_seen;
    if (mask) {
      for (int64_t l = 0; l < width; ++l) {
        const int64_t i = task.first_query + std::min(l, task.queries - 1);
        limits[l] = static_cast<int32_t>(
            std::clamp<int64_t>(task.sequence->past + i / p.group + 1 - begin, 0, kTileRows));
      }
    }
    if (SoftmaxTile(scores, end - begin, width, mask ? limits : nullptr, state.maximum, state.sum,
                    factor)) {
      ScaleRows(state.out, d, width, factor);
    }
    Accumulate(p, task, scores, vectors, tile, state.out);
  }
}

void WriteOutput(const Problem& p, const Task& task, const State& state) {
  const int64_t width = p.Width(task.queries);
  for (int64_t i = 0; i < task.queries; ++i) {
    float* out = p.Output(task, task.first_query + i);
    const float inverse = 1.0f / state.sum[i];
    for (int64_t c = 0; c < p.geometry.head_dim; ++c) out[c] = state.out[c * width + i] * inverse;
  }
}

// Adds `next` into `state`: both sums brought to the larger maximum.
void Merge(const Problem& p, int64_t width, const State& next, const State& state) {
  static thread_local Scratch scratch;
  auto* mine = scratch.Reserve<float>(static_cast<size_t>(2 * width));
  float* theirs = mine + width;
  for (int64_t l = 0; l < width; ++l) {
    const float maximum = std::max(state.maximum[l], next.maximum[l]);
    mine[l] = std::exp2(state.maximum[l] - maximum);
    theirs[l] = std::exp2(next.maximum[l] - maximum);
    state.maximum[l] = maximum;
    state.sum[l] = state.sum[l] * mine[l] + next.sum[l] * theirs[l];
  }
  for (int64_t c = 0; c < p.geometry.head_dim; ++c) {
    for (int64_t l = 0; l < width; ++l) {
      float& out = state.out[c * width + l];
      out = out * mine[l] + next.out[c * width + l] * theirs[l];
    }
  }
}

struct Plan {
  std::vector<Task> tasks;
  int64_t partials = 0;
};

Plan MakePlan(const Problem& p, std::span<const KvSequence> sequences) {
  Plan plan;
  const int64_t block = p.kernel.max_width();
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
        for (int64_t begin = 0; begin < seen; begin += split) {
          plan.tasks.push_back({.sequence = &sequence,
                                .head = head,
                                .first_query = first,
                                .queries = count,
                                .begin = begin,
                                .end = std::min(begin + split, seen),
                                .partial = partial ? plan.partials++ : -1});
        }
      }
    }
  }
  return plan;
}

}  // namespace

void Attention(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
               const MatrixView& q, int64_t q_heads, float scale, const MatrixView& out) {
  static thread_local Scratch partial_scratch;
  std::optional<GemmKernel> bf16_kernel;
  if (geometry.dtype == DType::kBF16) bf16_kernel = Bf16GemmKernel();
  const Problem p{.kernel = bf16_kernel ? *bf16_kernel : F32GemmKernel(),
                  .pairs = bf16_kernel.has_value(),
                  .geometry = geometry,
                  .q = q,
                  .out = out,
                  .group = q_heads / geometry.kv_heads,
                  .scale = scale * 1.44269504f};
  Plan plan = MakePlan(p, sequences);
  auto* partials =
      partial_scratch.Reserve<float>(static_cast<size_t>(plan.partials * p.PartialSize()));
  const auto count = static_cast<int64_t>(plan.tasks.size());
  // Backwards: causal blocks grow towards the end of a sequence, and the longest go first.
  pool.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
    static thread_local Scratch state_scratch;
    for (int64_t i = begin; i < end; ++i) {
      const Task& task = plan.tasks[static_cast<size_t>(count - 1 - i)];
      const bool direct = task.partial < 0;
      float* data = direct ? state_scratch.Reserve<float>(static_cast<size_t>(p.PartialSize()))
                           : partials + task.partial * p.PartialSize();
      const State state = StateAt(data, p.Width(task.queries));
      if (IsDecode(p, task)) {
        AttendDecode(p, task, state);
      } else {
        Attend(p, task, state);
      }
      if (direct) WriteOutput(p, task, state);
    }
  });
  // The splits of one block follow each other; they are merged in that order.
  for (size_t i = 0; i < plan.tasks.size();) {
    const Task& task = plan.tasks[i];
    size_t next = i + 1;
    if (task.partial >= 0) {
      const int64_t width = p.Width(task.queries);
      const State state = StateAt(partials + task.partial * p.PartialSize(), width);
      for (; next < plan.tasks.size() && plan.tasks[next].begin > 0; ++next) {
        Merge(p, width, StateAt(partials + plan.tasks[next].partial * p.PartialSize(), width),
              state);
      }
      WriteOutput(p, task, state);
    }
    i = next;
  }
}

}  // namespace litecache::ops::cpu
