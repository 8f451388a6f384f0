#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "ops/attention/attention_cuda.h"
#include "ops/bench_tables_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "ops/sparse_prefill/sparse_prefill_cuda.h"
#include "scoped_variable.h"

namespace litecache::ops::cuda {
namespace {

constexpr size_t kSeveralCaches = size_t{256} << 20;
constexpr int kLeastLaunches = 8;
constexpr size_t kMostMemory = size_t{1} << 30;  // beyond it pages are reused

struct Activations {
  Buffer q_data, out_data, scratch;
  MatrixView q, out;

  Activations(Bench& bench, const StepView& step, int64_t rows, int64_t head_dim)
      : q_data(bench.Zeros(static_cast<size_t>(rows * kQHeads * head_dim) * 4)),
        out_data(bench.Zeros(static_cast<size_t>(rows * kQHeads * head_dim) * 2)),
        scratch(bench.Zeros(AttentionScratchBytes(step.capacity, kQHeads, head_dim))),
        q(MatrixView::Of(q_data.as<float>(), rows, kQHeads * head_dim)),
        out(MatrixView::Of(out_data.data(), DType::kBF16, rows, kQHeads * head_dim)) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(rows * kQHeads * head_dim));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = i < 100003 ? normal(random) : values[i - 100003];
    }
    bench.gpu().Copy(q_data.data(), values.data(), values.size() * sizeof(float));
  }
};

void Prefill(Bench& bench, int64_t head_dim, int32_t past, int32_t rows) {
  const std::string name =
      fmt::format("prefill attention d {} past {} rows {}", head_dim, past, rows);
  if (!bench.Wants(name)) return;
  const int64_t page_rows = static_cast<int64_t>(kPageBytes) / (4 * head_dim);
  const BenchTable table(bench, kResident, head_dim, page_rows, 1, 1, past + rows);
  const BenchStep step(bench, {&table}, past, rows);
  const Activations x(bench, step.view, rows, head_dim);
  const double scores = (static_cast<double>(past) + 0.5 * (rows + 1)) * rows * kQHeads;
  const auto run = [&](const std::string& kernel, void* scratch) {
    bench.Run(name + kernel,
              static_cast<double>(past + rows) * kKvHeads * 4 * static_cast<double>(head_dim),
              4 * scores * static_cast<double>(head_dim), 1, [&](Stream& stream, int) {
                PagedAttention(stream, step.view, kKvHeads, table.tables[0], x.q, kQHeads, 0.1f,
                               x.out, scratch);
              });
  };
  if (rows <= 64) run(", split", x.scratch.data());
  for (const char* flashinfer : {"1", "0"}) {  // by tiles: without scratch also short chunks
    const testing::ScopedVariable variable("LITECACHE_FLASHINFER", flashinfer);
    run(*flashinfer == '0' ? ", of all GPUs" : "", nullptr);
  }
}

// Of all rows but their own and the first, queries keep a random share of the blocks; and the time
// to choose them.
void SparsePrefill(Bench& bench, int64_t head_dim, int32_t past, int32_t rows, double share) {
  const std::string name = fmt::format("sparse prefill attention d {} past {} rows {} keep {}",
                                       head_dim, past, rows, share);
  if (!bench.Wants(name)) return;
  const int64_t page_rows = static_cast<int64_t>(kPageBytes) / (4 * head_dim);
  const BenchTable table(bench, kResident, head_dim, page_rows, 1, 1, past + rows);
  BenchStep step(bench, {&table}, past, rows);
  step.view.capacity = 1;
  const Activations x(bench, step.view, rows, head_dim);
  const Buffer memory =
      bench.gpu().Allocate(SparsePrefillBytes(kKvHeads, kQHeads, head_dim, rows, past + rows));
  std::vector<int32_t> heads(kKvHeads);
  std::iota(heads.begin(), heads.end(), 0);
  DeviceKeptBlocks kept;
  const double scores = (static_cast<double>(past) + 0.5 * (rows + 1)) * rows * kQHeads;
  if (share == 1) {
    bench.Run(name + ", choice", 0, 4 * scores * static_cast<double>(head_dim) / 32, 1,
              [&](Stream& stream, int) {
                kept = ChooseBlocks(stream, step.view, kKvHeads, table.tables[0], heads, x.q,
                                    kQHeads, 0.1f, 0.95, false, memory.data());
              });
    return;
  }
  kept.query_rows = head_dim == 64 ? 192 : 128;
  kept.query_blocks = (rows + kept.query_rows - 1) / kept.query_rows;
  const int32_t blocks = (past + rows + KeptBlocks::kRows - 1) / KeptBlocks::kRows;
  kept.words = (blocks + 31) / 32;
  kept.list_size = blocks;
  std::mt19937 random(1);
  std::vector<uint32_t> bits;
  std::vector<uint16_t> lists;
  std::vector<int32_t> counts;
  double attended = 0;
  for (int64_t pair = 0; pair < int64_t{kQHeads} * kept.query_blocks; ++pair) {
    const auto first = static_cast<int32_t>(pair % kept.query_blocks) * kept.query_rows;
    const int32_t seen = (past + std::min(first + kept.query_rows, rows) - 1) / KeptBlocks::kRows;
    std::vector<uint32_t> words(static_cast<size_t>(kept.words));
    const size_t begin = lists.size();
    for (int32_t b = 0; b <= seen; ++b) {
      const bool forced = b == 0 || b >= (past + first) / KeptBlocks::kRows;
      if (!forced && static_cast<double>(random() % 10000) >= share * 10000) continue;
      words[static_cast<size_t>(b / 32)] |= 1u << b % 32;
      lists.push_back(static_cast<uint16_t>(b));
    }
    counts.push_back(static_cast<int32_t>(lists.size() - begin));
    attended += static_cast<double>(counts.back()) * KeptBlocks::kRows * kept.query_rows;
    lists.resize(begin + static_cast<size_t>(blocks));
    bits.insert(bits.end(), words.begin(), words.end());
  }
  const Buffer device_bits = bench.Upload(bits), device_lists = bench.Upload(lists),
               device_counts = bench.Upload(counts);
  kept.bits = device_bits.as<uint32_t>();
  kept.lists = device_lists.as<uint16_t>();
  kept.counts = device_counts.as<int32_t>();
  for (const char* flashinfer : {"1", "0"}) {
    const testing::ScopedVariable variable("LITECACHE_FLASHINFER", flashinfer);
    bench.Run(name + (*flashinfer == '0' ? ", of all GPUs" : ""), 0,
              4 * attended * static_cast<double>(head_dim), 1, [&](Stream& stream, int) {
                PagedAttention(stream, step.view, kKvHeads, table.tables[0], x.q, kQHeads, 0.1f,
                               x.out, x.scratch.data(), &kept);
              });
  }
}

void Prefills(Bench& bench, int64_t head_dim) {
  for (const double share : {0.1, 0.2, 0.4, 1.0}) {
    for (const int32_t past : {24576, 122880, 1040384}) {
      SparsePrefill(bench, head_dim, past, 8192, share);
    }
  }
  for (int32_t rows : {64, 2048, 8192, 32768}) Prefill(bench, head_dim, 0, rows);
  for (int32_t rows : {8, 512, 2048, 8192}) Prefill(bench, head_dim, 24576, rows);
  Prefill(bench, head_dim, 122880, 8192);
  for (const int32_t past : {8192, 131072}) {
    for (const int32_t rows : {2, 4, 8, 16, 32, 64}) Prefill(bench, head_dim, past, rows);
  }
}

void Decode(Bench& bench, int64_t head_dim, int32_t context, int64_t batch) {
  const std::string name =
      fmt::format("decode attention d {} context {} batch {}", head_dim, context, batch);
  if (!bench.Wants(name)) return;
  const int64_t page_rows = static_cast<int64_t>(kPageBytes) / (4 * head_dim);
  const double bytes = static_cast<double>(context) * static_cast<double>(batch) * kKvHeads * 4 *
                       static_cast<double>(head_dim);
  const auto layers =
      static_cast<int>(std::clamp(static_cast<double>(kSeveralCaches) / bytes + 1, 1.0, 16.0));
  const BenchTable table(bench, kResident, head_dim, page_rows, layers, batch, context);
  const BenchStep step(bench, {&table}, context - 1, 1);
  const Activations x(bench, step.view, batch, head_dim);
  // Several launches even for one layer, so that the cost of a graph is not part of the time.
  bench.Run(name, bytes, bytes / 4 * 4 * kGroup, std::max(layers, kLeastLaunches),
            [&](Stream& stream, int launch) {
              PagedAttention(stream, step.view, kKvHeads,
                             table.tables[static_cast<size_t>(launch % layers)], x.q, kQHeads, 0.1f,
                             x.out, x.scratch.data());
            });
}

// All heads offloaded, `used` cached rows each, all of them attended: bf16 rows or codes.
void Hybrid(Bench& bench, int64_t head_dim, int32_t context, int32_t used, int64_t batch,
            RowEncoding encoding) {
  const std::string name = fmt::format("hybrid attention d {} context {} cached {} {} batch {}",
                                       head_dim, context, used, Name(encoding), batch);
  if (!bench.Wants(name)) return;
  constexpr int32_t kSink = 4, kRecent = 64, kCarry = 64;
  constexpr int64_t kLayers = 8;
  constexpr int32_t kRing = kRecent + kCarry + 1, kCacheBegin = kSink + kRing;
  const int64_t row_bytes = 4 * head_dim;
  const int64_t page_rows = static_cast<int64_t>(kPageBytes) / (row_bytes + 12);
  const auto blocks = [](int64_t rows, int64_t page) { return (rows + page - 1) / page; };
  CodeSlots codes{.encoding = encoding, .begin = kCacheBegin};
  int64_t pages = blocks(kCacheBegin + used, page_rows);
  if (encoding != RowEncoding::kBF16) {
    codes.page_slots = CodeSlotsIn(static_cast<int64_t>(kPageBytes), head_dim);
    codes.first_page = static_cast<int32_t>(blocks(kCacheBegin, page_rows));
    pages = codes.first_page + blocks(used, codes.page_slots);
  }
  const auto table_bytes = static_cast<size_t>(batch * kLayers * kKvHeads * pages) * kPageBytes;
  BenchTable table(bench, kSlots, head_dim, page_rows, kLayers, batch, pages * page_rows,
                   bench.Random(std::min(table_bytes, kMostMemory)));
  for (RowTable& layer : table.tables) {
    layer.sink = kSink;
    layer.ring = kRing;
  }
  // The update numbers of all slots are 0; a page may hold slots of either kind.
  const size_t arrays = static_cast<size_t>(page_rows * row_bytes);
  const size_t code_arrays = static_cast<size_t>(codes.page_slots * 2 * head_dim);
  const std::vector<char> zeros(static_cast<size_t>(page_rows) * 12);
  std::vector<float> of_codes(static_cast<size_t>(codes.page_slots) * 4);
  for (size_t i = of_codes.size() / 2; i < of_codes.size(); ++i) of_codes[i] = 0.01f;
  for (size_t at = 0; at + kPageBytes <= table.memory.size(); at += kPageBytes) {
    auto* page = table.memory.as<char>() + at;
    if (codes.page_slots == 0) {
      bench.gpu().Copy(page + arrays, zeros.data(), zeros.size());
    } else {
      bench.gpu().Copy(page + code_arrays, of_codes.data(), of_codes.size() * 4);
    }
  }
  std::vector<HeadState> states(static_cast<size_t>(kLayers * kKvHeads));
  for (HeadState& state : states) {
    state.used = used;
    state.window_begin = context - kRecent;
  }
  const Buffer heads = bench.Upload(states);
  const BenchStep step(bench, {&table}, context - 1, 1,
                       std::vector<HeadState*>(static_cast<size_t>(batch), heads.as<HeadState>()));
  const Activations x(bench, step.view, batch, head_dim);
  const double cached_bytes = codes.page_slots > 0 ? 2.0 * head_dim + 12 : row_bytes + 4.0;
  const double bytes = (used * cached_bytes + static_cast<double>((kSink + kRecent) * row_bytes)) *
                       static_cast<double>(batch) * kKvHeads;
  const double flops = static_cast<double>(used) * static_cast<double>(batch * kQHeads * head_dim);
  bench.Run(name, bytes, 4 * flops, kLayers, [&](Stream& stream, int layer) {
    HybridTables tables;
    tables.slots = table.tables[static_cast<size_t>(layer)];
    tables.codes = codes;
    tables.cache_begin = kCacheBegin;
    tables.windows = {.recent = kRecent, .carry = kCarry, .budget = {.share = 0.1}};
    HybridAttention(stream, step.view, kKvHeads, tables, x.q, kQHeads, 0.1f, x.out,
                    x.scratch.data());
  });
}

void Append(Bench& bench, int64_t head_dim, int32_t rows) {
  const std::string name = fmt::format("append rows d {} rows {}", head_dim, rows);
  if (!bench.Wants(name)) return;
  const int64_t page_rows = static_cast<int64_t>(kPageBytes) / (4 * head_dim);
  const BenchTable table(bench, kResident, head_dim, page_rows, 16, 1, rows);
  const BenchStep step(bench, {&table}, 0, rows);
  const Buffer k = bench.Random(static_cast<size_t>(rows * kKvHeads * head_dim) * 4);
  const MatrixView view = MatrixView::Of(k.as<float>(), rows, kKvHeads * head_dim);
  bench.Run(name, static_cast<double>(rows) * kKvHeads * static_cast<double>(head_dim) * 12, 0, 16,
            [&](Stream& stream, int layer) {
              AppendRows(stream, step.view, kKvHeads, table.tables[static_cast<size_t>(layer)],
                         view, view);
            });
}

void BenchAttention(Bench& bench) {
  Prefills(bench, 256);
  for (int64_t head_dim : {64, 128}) {
    Prefills(bench, head_dim);
    for (int64_t batch : {1, 8, 64}) {
      for (int32_t context : {8192, 131072}) Decode(bench, head_dim, context, batch);
    }
    for (RowEncoding encoding : {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8}) {
      for (int64_t batch : {1, 6}) {
        Hybrid(bench, head_dim, 131072, 13107, batch, encoding);
        if (head_dim == 128) Hybrid(bench, head_dim, 1000000, 100000, batch, encoding);
      }
    }
    for (int32_t rows : {1, 2048}) Append(bench, head_dim, rows);
  }
}

const BenchTopic kAttention("attention", BenchAttention);

}  // namespace
}  // namespace litecache::ops::cuda
