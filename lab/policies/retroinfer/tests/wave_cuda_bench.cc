// RetroInfer's decode step without its attention: selects clusters, lists their rows, estimates the
// others. Published shares of the clusters, or 10% of them attended exactly.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "lab/policies/retroinfer/ops/wave_index_cuda.h"
#include "ops/bench_tables_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int32_t kHeadDim = 128, kClusterTokens = 16, kBlockTokens = 8;
constexpr int32_t kSink = 4, kRing = 64 + 1024;
constexpr size_t kSeveralCaches = size_t{256} << 20;
constexpr double kEstimated = 0.232;

// Clusters per page, followed by their sizes.
constexpr auto kRowBytes = static_cast<int32_t>(2 * kHeadDim * sizeof(bf16));
constexpr auto kPageClusters = static_cast<int32_t>(kPageBytes / (kRowBytes + sizeof(int32_t)));

Buffer ClusterPages(Bench& bench, int64_t count) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::byte> page(kPageBytes);
  auto* rows = reinterpret_cast<bf16*>(page.data());
  for (int64_t i = 0; i < int64_t{kPageClusters} * 2 * kHeadDim; ++i)
    rows[i] = bf16(normal(random));
  auto* sizes = reinterpret_cast<int32_t*>(page.data() + int64_t{kPageClusters} * kRowBytes);
  std::fill_n(sizes, kPageClusters, kClusterTokens);
  Buffer memory = bench.gpu().Allocate(static_cast<size_t>(count) * kPageBytes);
  for (int64_t i = 0; i < count; ++i) {
    bench.gpu().Copy(memory.as<std::byte>() + static_cast<size_t>(i) * kPageBytes, page.data(),
                     kPageBytes);
  }
  return memory;
}

void Wave(Bench& bench, int32_t context, int32_t batch, double attended) {
  const auto name = [&](const char* what) {
    return fmt::format("wave {} context {} batch {} attended {:.1f}%", what, context, batch,
                       100 * attended);
  };
  const char* const kSelect = "select";
  const char* const kList = "list";
  const char* const kEstimate = "estimate";
  if (!bench.Wants(name(kSelect)) && !bench.Wants(name(kList)) && !bench.Wants(name(kEstimate))) {
    return;
  }
  const int32_t clusters = context / kClusterTokens;
  const auto pairs = static_cast<size_t>(batch * kKvHeads);
  const int32_t ranked = std::max(1, static_cast<int32_t>(attended * clusters));
  const auto unranked = static_cast<int32_t>(kEstimated * clusters);
  const double of_layer = static_cast<double>(pairs) * clusters * kRowBytes;
  const auto layers = static_cast<int32_t>(
      std::clamp(static_cast<double>(kSeveralCaches) / of_layer + 1, 5.0, 15.0));
  const int64_t blocks = (clusters + kPageClusters - 1) / kPageClusters;
  const BenchTable index(bench, kMetadata, kHeadDim, kPageClusters, layers, batch, clusters,
                         ClusterPages(bench, blocks * layers * batch * kKvHeads));
  const BenchStep step(bench, {&index}, context - 1, 1);
  const int32_t buffer_blocks = std::max(150, 4 * ranked) * kClusterTokens / kBlockTokens;
  const WaveShape shape{.kv_heads = kKvHeads,
                        .group = kGroup,
                        .head_dim = kHeadDim,
                        .sink = kSink,
                        .ring = kRing,
                        .block_tokens = kBlockTokens,
                        .page_block_rows = 128,
                        .max_clusters = (clusters + 1023) / 1024 * 1024,
                        .max_ranked = ranked,
                        .max_chosen = ranked + unranked,
                        .max_rows = kRing + buffer_blocks * kBlockTokens};
  const int32_t lists = layers * static_cast<int32_t>(kKvHeads);
  // Nothing is cached.
  std::vector<int32_t> begins(static_cast<size_t>(lists * clusters));
  for (size_t i = 0; i < begins.size(); ++i) {
    begins[i] = kSink + static_cast<int32_t>(i) % clusters * kClusterTokens;
  }
  const Buffer where = bench.Upload(begins);
  const Buffer cached = bench.Upload(std::vector<int32_t>(begins.size(), -1));
  WaveSequence sequence{.clusters = clusters,
                        .ranked = ranked,
                        .unranked = unranked,
                        .buffer_blocks = buffer_blocks,
                        .indexed_end = context - 64,
                        .cluster_stride = clusters,
                        .begins = where.as<int32_t>(),
                        .first_block = cached.as<int32_t>(),
                        .next_block = cached.as<int32_t>()};
  const Buffer sequences =
      bench.Upload(std::vector<WaveSequence>(static_cast<size_t>(batch), sequence));
  std::vector<Buffer> memory;
  const auto take = [&](int64_t bytes_a_pair) {
    memory.push_back(bench.Zeros(pairs * static_cast<size_t>(bytes_a_pair)));
    return memory.back().data();
  };
  WaveLayer work;
  work.sequences = sequences.as<WaveSequence>();
  work.logits = static_cast<float*>(take(int64_t{4} * kGroup * shape.max_clusters));
  work.ids = static_cast<int32_t*>(take(int64_t{4} * shape.max_chosen));
  work.choices = static_cast<WaveChoice*>(take(sizeof(WaveChoice)));
  work.told_choices = static_cast<WaveChoice*>(take(sizeof(WaveChoice)));
  work.told_ids = static_cast<int32_t*>(take(int64_t{4} * shape.max_chosen));
  work.leading = static_cast<int32_t*>(take(4));
  work.listed = static_cast<int32_t*>(take(int64_t{4} * shape.max_rows));
  work.listed_count = static_cast<int32_t*>(take(4));
  work.fetched_sources = static_cast<int32_t*>(take(int64_t{4} * shape.max_rows));
  work.fetched_targets = static_cast<int32_t*>(take(int64_t{4} * shape.max_rows));
  work.fetched_count = static_cast<int32_t*>(take(4));
  work.states = static_cast<float*>(take(int64_t{4} * kEstimateParts * kGroup * (kHeadDim + 2)));
  std::vector<WaveLayer> all;
  for (const RowTable& table : index.tables) {
    WaveLayer& layer = all.emplace_back(work);
    layer.index = layer.rows = layer.store = table;
  }
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(batch * kQHeads * kHeadDim));
  for (float& x : values) x = normal(random);
  const Buffer q = bench.Upload(values);
  const MatrixView queries = MatrixView::Of(q.as<float>(), batch, kQHeads * kHeadDim);
  const Buffer scratch = bench.Zeros(SelectClustersScratchBytes(shape, batch));
  const auto of = [&](int layer) -> const WaveLayer& { return all[static_cast<size_t>(layer)]; };
  // Centroids, and half of a row for each estimated cluster.
  bench.Run(name(kSelect), of_layer / 2, 0, layers, [&](Stream& stream, int layer) {
    SelectClusters(stream, step.view, shape, of(layer), queries, 0.1f, scratch.data());
  });
  bench.Run(name(kList), 0, 0, layers,
            [&](Stream& stream, int layer) { ListWaveRows(stream, step.view, shape, of(layer)); });
  bench.Run(name(kEstimate), of_layer / 2 * kEstimated, 0, layers, [&](Stream& stream, int layer) {
    EstimateClusters(stream, step.view, shape, of(layer));
  });
}

void BenchWave(Bench& bench) {
  for (const double attended : {0.018, 0.1}) {
    for (const int32_t context : {8192, 32768, 131072}) {
      for (const int32_t batch : {1, 4, 16}) {
        if (context * batch <= 131072) Wave(bench, context, batch, attended);
      }
    }
  }
}

const BenchTopic kWave("wave", BenchWave);

}  // namespace
}  // namespace litecache::lab::ops::cuda
