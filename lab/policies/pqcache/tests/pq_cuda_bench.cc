// PQCache's selection and lookup: its published settings, with half of a 10% budget selected.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "lab/policies/pqcache/ops/pqcache_cuda.h"
#include "ops/bench_tables_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int32_t kHeadDim = 128, kSink = 4, kBlockTokens = 128;
constexpr size_t kSeveralCaches = size_t{256} << 20;

void Pq(Bench& bench, int32_t context, int32_t batch) {
  const auto name = [&](const char* what) {
    return fmt::format("pq {} context {} batch {}", what, context, batch);
  };
  if (!bench.Wants(name("select")) && !bench.Wants(name("lookup"))) return;
  const PqFormat format{.subspaces = 2, .bits = 6};
  const auto page_tokens =
      static_cast<int32_t>(static_cast<int64_t>(kPageBytes) / format.subspaces);
  const double of_layer = static_cast<double>(batch) * kKvHeads * context * 2;
  const auto layers = static_cast<int32_t>(
      std::clamp(static_cast<double>(kSeveralCaches) / of_layer + 1, 5.0, 32.0));
  const BenchTable codes(bench, kPqCodes, kHeadDim, page_tokens, layers, batch, context);
  const BenchTable codebooks(bench, kPqCodebooks, kHeadDim, 1, layers, batch, 1);
  const BenchStep step(bench, {&codes, &codebooks}, context - 1, 1);
  const int32_t selected = context / 20, blocks = context / kBlockTokens + 1;
  const auto pairs = static_cast<size_t>(batch * kKvHeads);
  const Buffer slots = bench.Upload(std::vector<int32_t>(static_cast<size_t>(layers * blocks), -1));
  const PqSequence sequence{.rows = selected,
                            .window = kSink + selected + 1,
                            .blocks = blocks,
                            .slots = slots.as<int32_t>()};
  const SelectRange range{.begin = kSink, .end = context - 1 - selected, .k = selected};
  const auto of_batch = static_cast<size_t>(batch);
  const Buffer sequences = bench.Upload(std::vector<PqSequence>(of_batch, sequence));
  const Buffer ranges = bench.Upload(std::vector<SelectRange>(of_batch, range));
  std::vector<Buffer> memory;
  const auto take = [&](size_t words) {
    memory.push_back(bench.Zeros(words * sizeof(int32_t)));
    return memory.back().as<int32_t>();
  };
  const size_t rows = pairs * static_cast<size_t>(selected);
  const Buffer counters = bench.Zeros(kKvHeads * sizeof(DeviceHeadCounters));
  const PqLayer work{.format = format,
                     .kv_heads = kKvHeads,
                     .group = kGroup,
                     .head_dim = kHeadDim,
                     .codebooks_a_page = 1,
                     .sink = kSink,
                     .block_tokens = kBlockTokens,
                     .sequences = sequences.as<PqSequence>(),
                     .ranges = ranges.as<SelectRange>(),
                     .max_rows = selected,
                     .selected = take(rows),
                     .selected_count = take(pairs),
                     .leading = take(pairs),
                     .listed = take(rows),
                     .listed_count = take(pairs),
                     .moved_positions = take(rows),
                     .moved_slots = take(rows),
                     .moved_count = take(pairs),
                     .uses = take(of_batch * static_cast<size_t>(blocks)),
                     .max_blocks = blocks,
                     .counters = counters.as<DeviceHeadCounters>()};
  std::vector<PqLayer> all;
  for (int32_t layer = 0; layer < layers; ++layer) {
    PqLayer& of = all.emplace_back(work);
    of.layer = layer;
    of.codes = codes.tables[static_cast<size_t>(layer)];
  }
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(batch * kQHeads * kHeadDim));
  for (float& x : values) x = normal(random);
  const Buffer q = bench.Upload(values);
  const MatrixView queries = MatrixView::Of(q.as<float>(), batch, kQHeads * kHeadDim);
  const Buffer scratch =
      bench.Zeros(SelectScratchBytes({.kv_heads = kKvHeads, .group = kGroup}, batch, context));
  bench.Run(name("select"), of_layer, 0, layers, [&](Stream& stream, int layer) {
    PqSelect(stream, step.view, all[static_cast<size_t>(layer)], queries, 0.1f, scratch.data());
  });
  bench.Run(name("lookup"), 0, 0, layers, [&](Stream& stream, int layer) {
    PqLookup(stream, step.view, all[static_cast<size_t>(layer)]);
  });
}

void BenchPq(Bench& bench) {
  for (const int32_t context : {8192, 32768, 131072}) {
    for (const int32_t batch : {1, 4, 16}) {
      if (context * batch <= 131072) Pq(bench, context, batch);
    }
  }
}

const BenchTopic kPq("pq", BenchPq);

}  // namespace
}  // namespace litecache::lab::ops::cuda
