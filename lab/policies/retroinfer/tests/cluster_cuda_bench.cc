// RetroInfer's clustering of one layer of a prompt whose rows are on the device, as its last chunk
// runs it in parallel with the products of later layers.
#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/dtype.h"
#include "lab/policies/retroinfer/ops/cluster_build_cuda.h"
#include "ops/bench_tables_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int32_t kHeadDim = 128, kClusterTokens = 16, kSegment = 8192, kIterations = 10;
constexpr auto kRowBytes = static_cast<int64_t>(2 * kHeadDim * sizeof(bf16));
constexpr auto kPageRows = static_cast<int64_t>(kPageBytes) / kRowBytes;
constexpr auto kPageClusters = static_cast<int64_t>(kPageBytes / (kRowBytes + sizeof(int32_t)));

void Clusters(Bench& bench, int32_t context) {
  const std::string name = fmt::format("clusters of a layer, context {}", context);
  if (!bench.Wants(name)) return;
  const int32_t clusters = context / kClusterTokens, segments = std::max(1, context / kSegment);
  const RowFormat format{RowEncoding::kBF16, kHeadDim};
  const auto heads = static_cast<int32_t>(kKvHeads);
  const BenchTable rows(bench, kStaging, kHeadDim, kPageRows, 1, 1, context);
  const BenchTable index(bench, kMetadata, kHeadDim, kPageClusters, 1, 1, clusters);
  const auto lists = [&](const BenchTable& table, int64_t page_rows) {
    return ListPages{table.pages[0], heads, static_cast<int32_t>(page_rows), format};
  };
  const Buffer begins = bench.Zeros(static_cast<size_t>(heads * clusters) * sizeof(int32_t));
  const Buffer order =
      bench.Zeros(static_cast<size_t>(heads) * static_cast<size_t>(context) * sizeof(int32_t));
  const Buffer scratch =
      bench.Zeros(static_cast<size_t>(heads) *
                  ClusterBuildScratchBytes(format, context, clusters, /*load=*/false));
  const ClusterBuildWork work{.source = lists(rows, kPageRows),
                              .load = false,
                              .store = lists(rows, kPageRows),
                              .index = lists(index, kPageClusters),
                              .lists = heads,
                              .count = context,
                              .clusters = clusters,
                              .segments = segments,
                              .iterations = kIterations,
                              .begins = begins.as<int32_t>(),
                              .order = order.as<int32_t>(),
                              .scratch = scratch.data()};
  // Keys are read once per iteration for the sums, and once more before the first and after the
  // last one.
  const double keys = static_cast<double>(heads) * context * kRowBytes / 2;
  const double of_iteration = 2.0 * heads * context * kHeadDim;
  bench.Run(name, keys * (2 * kIterations + 3),
            of_iteration * clusters * ((kIterations - 1.0) / segments + 1), 1,
            [&](Stream& stream, int) { MakeClusters(stream, work); });
}

void BenchClusters(Bench& bench) {
  for (const int32_t context : {2048, 8192, 32768, 131072}) Clusters(bench, context);
}

const BenchTopic kClusters("clusters", BenchClusters);

}  // namespace
}  // namespace litecache::lab::ops::cuda
