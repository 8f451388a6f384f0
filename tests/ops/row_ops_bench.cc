// Speed of the operations on KV rows. Floors: row attention reads every row once, a move reads and
// writes them; compare with BM_MemoryRead. Rows come from memory: the benchmarks cycle through more
// of them than the caches hold.
#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "ops/attention/row_attention.h"
#include "ops/ops_bench.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/rows/move_rows.h"

namespace litecache::ops {
namespace {

constexpr int64_t kContext = 32768;
constexpr size_t kColdBytes = size_t{512} << 20;

// Rows of many heads, each in pages of 64 KiB.
struct HeadRows {
  HeadRows(const RowFormat& format, int64_t heads, int64_t tokens)
      : format(format), page_tokens(65536 / static_cast<int64_t>(format.row_bytes())) {
    while ((page_tokens & (page_tokens - 1)) != 0) page_tokens &= page_tokens - 1;
    per_head = (tokens + page_tokens - 1) / page_tokens;
    const size_t page_bytes = static_cast<size_t>(page_tokens) * format.row_bytes();
    buffer = TheDevice().Allocate(static_cast<size_t>(heads * per_head) * page_bytes);
    // Small positive values in every format.
    std::fill_n(buffer.as<uint8_t>(), buffer.size(), uint8_t{0x3c});
    for (int64_t i = 0; i < heads * per_head; ++i) {
      pages.push_back(buffer.as<std::byte>() + static_cast<size_t>(i) * page_bytes);
    }
  }
  PagedRows Head(int64_t head) const {
    return {pages.data() + head * per_head, page_tokens, format};
  }
  RowFormat format;
  int64_t page_tokens, per_head;
  Buffer buffer;
  std::vector<std::byte*> pages;
};

// `count` ascending positions of `tokens`.
std::vector<int32_t> Positions(uint32_t seed, int64_t tokens, int64_t count) {
  std::mt19937 random(seed);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t left = count - static_cast<int64_t>(chosen.size());
    if (static_cast<int64_t>(random() % static_cast<uint32_t>(tokens - t)) < left) {
      chosen.push_back(static_cast<int32_t>(t));
    }
  }
  return chosen;
}

// Arguments: KV heads of all sequences, rows per head, head_dim, query heads per KV head, rows by
// list (a resident head's positions in 32K tokens) or not (sink, cached and recent slots).
void BM_RowAttention(benchmark::State& state) {
  const int64_t heads = state.range(0), rows = state.range(1), group = state.range(3);
  const RowFormat format{RowEncoding::kBF16, state.range(2)};
  const bool scattered = state.range(4) != 0;
  const size_t call_bytes = static_cast<size_t>(heads * rows) * format.row_bytes();
  const size_t call_memory =
      scattered ? static_cast<size_t>(heads * kContext) * format.row_bytes() : call_bytes;
  const auto copies = static_cast<int64_t>(std::max<size_t>(2, kColdBytes / call_memory));
  const HeadRows memory(format, heads * copies, scattered ? kContext : rows + 64);
  std::vector<std::vector<int32_t>> positions;
  for (uint32_t i = 0; i < 8; ++i) positions.push_back(Positions(i, kContext, rows));
  std::vector<std::vector<RowPart>> parts;
  for (int64_t i = 0; i < heads * copies; ++i) {
    const PagedRows head = memory.Head(i);
    if (scattered) {
      parts.push_back({{.rows = head, .indices = positions[i % 8].data(), .count = rows}});
    } else {
      parts.push_back({{.rows = head, .begin = 0, .count = 4},
                       {.rows = head, .begin = 64, .count = rows - 68},
                       {.rows = head, .begin = rows - 4, .count = 64}});
    }
  }
  Operand q(DType::kF32, heads, group * format.head_dim);
  Operand out(DType::kF32, heads, group * format.head_dim);
  auto stream = TheDevice().CreateStream();
  std::vector<RowAttentionHead> work(static_cast<size_t>(heads));
  int64_t copy = 0;
  for (auto _ : state) {
    for (int64_t h = 0; h < heads; ++h) {
      work[static_cast<size_t>(h)] = {q.view.Row<float>(h), out.view.Row<float>(h),
                                      parts[static_cast<size_t>(copy * heads + h)]};
    }
    RowAttention(*stream, format, group, work, 0.125f);
    copy = (copy + 1) % copies;
  }
  Report(state, static_cast<double>(call_bytes), 0);
}
BENCHMARK(BM_RowAttention)
    ->Args({2, 3344, 64, 4, 0})
    ->Args({2, 3344, 64, 4, 1})
    ->Args({8, 3344, 64, 4, 1})
    ->Args({32, 3344, 64, 4, 0})
    ->Args({32, 3344, 64, 4, 1})
    ->Args({32, 3344, 128, 4, 0})
    ->Args({32, 3344, 128, 4, 1})
    ->Args({8, 3344, 128, 8, 1})
    ->Args({8, 3344, 128, 1, 1})
    ->Args({2, 468, 64, 4, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Arguments: KV heads, rows per head, head_dim, encoding of the source; slots are bf16.
void BM_MoveRows(benchmark::State& state) {
  const int64_t heads = state.range(0), rows = state.range(1), head_dim = state.range(2);
  const RowFormat from{static_cast<RowEncoding>(state.range(3)), head_dim};
  const RowFormat to{RowEncoding::kBF16, head_dim};
  const size_t call_memory = static_cast<size_t>(heads * kContext) * from.row_bytes();
  const auto copies = static_cast<int64_t>(std::max<size_t>(2, kColdBytes / call_memory));
  const HeadRows source(from, heads * copies, kContext), target(to, heads * copies, rows);
  std::vector<std::vector<int32_t>> positions;
  for (uint32_t i = 0; i < 8; ++i) positions.push_back(Positions(i, kContext, rows));
  const std::vector<int32_t> slots = Positions(0, rows, rows);
  auto stream = TheDevice().CreateStream();
  std::vector<MoveWork> work(static_cast<size_t>(heads));
  int64_t copy = 0;
  for (auto _ : state) {
    for (int64_t h = 0; h < heads; ++h) {
      work[static_cast<size_t>(h)] = {.source = source.Head(copy * heads + h),
                                      .target = target.Head(copy * heads + h),
                                      .positions = positions[static_cast<size_t>(h % 8)].data(),
                                      .slots = slots.data(),
                                      .count = rows};
    }
    MoveRows(*stream, work);
    copy = (copy + 1) % copies;
  }
  Report(state,
         static_cast<double>(heads * rows) * static_cast<double>(from.row_bytes() + to.row_bytes()),
         0);
}
BENCHMARK(BM_MoveRows)
    ->ArgsProduct({{2, 32}, {3276}, {64, 128}, {0}})
    ->ArgsProduct({{32}, {3276}, {64, 128}, {2, 3}})
    ->Args({2, 300, 64, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Arguments: head_dim, encoding to write.
void BM_ConvertRows(benchmark::State& state) {
  const RowFormat from{RowEncoding::kBF16, state.range(0)};
  const RowFormat to{static_cast<RowEncoding>(state.range(1)), state.range(0)};
  const HeadRows source(from, 8, kContext), target(to, 8, kContext);
  auto stream = TheDevice().CreateStream();
  int64_t head = 0;
  for (auto _ : state) {
    const ConvertWork work{source.Head(head), target.Head(head), 0, kContext};
    ConvertRows(*stream, {&work, 1});
    head = (head + 1) % 8;
  }
  Report(state,
         static_cast<double>(kContext) * static_cast<double>(from.row_bytes() + to.row_bytes()), 0);
}
BENCHMARK(BM_ConvertRows)
    ->ArgsProduct({{64, 128}, {2, 3}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// One layer's lookup. Arguments: KV heads of all sequences, query heads per KV head, head_dim.
void BM_QsacLookup(benchmark::State& state) {
  const int64_t heads = state.range(0), group = state.range(1), head_dim = state.range(2);
  Operand q(DType::kF32, heads * group, head_dim), label(DType::kF32, heads * group, head_dim);
  Operand importance(DType::kF32, heads, group);
  for (int64_t i = 0; i < heads * group; ++i) importance.view.Row<float>(0)[i] = 0.5f;
  std::vector<LookupWork> work;
  for (int64_t h = 0; h < heads; ++h) {
    work.push_back({.q = q.view.Row<float>(h * group),
                    .label = label.view.Row<float>(h * group),
                    .importance = importance.view.Row<float>(h),
                    .tau = 0.5f});
  }
  auto stream = TheDevice().CreateStream();
  for (auto _ : state) QsacLookup(*stream, group, head_dim, Aggregation::kImportance, work);
}
BENCHMARK(BM_QsacLookup)
    ->Args({2, 4, 64})
    ->Args({12, 4, 64})
    ->Args({8, 4, 128})
    ->Args({256, 4, 128})
    ->UseRealTime()
    ->Unit(benchmark::kNanosecond);

// The cost of handing work to the pool: an empty loop directly after the previous one, and after
// `range(0)` microseconds of other work, when the workers may be asleep.
void BM_EmptyParallelFor(benchmark::State& state) {
  ThreadPool& pool = TheDevice().pool();
  for (auto _ : state) {
    if (state.range(0) > 0) {
      state.PauseTiming();
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::microseconds(state.range(0));
      while (std::chrono::steady_clock::now() < until) {
      }
      state.ResumeTiming();
    }
    pool.ParallelFor(64, 1, [](int64_t begin, int64_t, int) { benchmark::DoNotOptimize(begin); });
  }
}
BENCHMARK(BM_EmptyParallelFor)
    ->Arg(0)
    ->Arg(5)
    ->Arg(50)
    ->UseRealTime()
    ->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace litecache::ops
