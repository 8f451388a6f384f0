#include "lab/policies/retroinfer/shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "lab/policies/retroinfer/options.h"

namespace litecache::lab {
namespace {

// Numbers of clusters are multiples of this, as in the original, whose kernels require it.
constexpr int64_t kClusterUnit = 8;
// Minimum number of clusters in the execution buffer.
constexpr int64_t kLeastBuffer = 150;

// As Python's round(): ties to even.
int64_t Round(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

RetroShape::RetroShape(const Layout& layout_of_model, const KvOptions& options, DeviceType device)
    : layout(layout_of_model),
      group(layout.q_heads / layout.kv_heads),
      lists(layout.layers * layout.kv_heads),
      o(options.settings.Of<RetroInferOptions>()),
      sink(options.sink_tokens),
      recent(options.recent_tokens),
      pages(layout),
      format(ops::FormatOf(layout.dtype, layout.head_dim)),
      page_clusters(ops::PagedClusters::PageClusters(pages.page_bytes, format)),
      page_block_rows(pages.page_tokens / o.block_tokens * o.block_tokens),
      cluster_blocks(std::max<int64_t>(
          Round(static_cast<double>(o.cluster_tokens) / static_cast<double>(o.block_tokens)), 1)),
      on_gpu(device == DeviceType::kCuda) {
  if (page_clusters < 1 || page_block_rows < 1) {
    throw InvalidArgument(
        "KV policy retroinfer: pages of {} rows hold no block of {} rows; use a smaller "
        "block_tokens",
        pages.page_tokens, o.block_tokens);
  }
  const double clusters =
      static_cast<double>(o.update_tokens) / static_cast<double>(o.cluster_tokens);
  update.clusters = std::max(Round(clusters) / kClusterUnit * kClusterUnit, kClusterUnit);
  const auto share = [&](double part) {
    return std::max<int64_t>(Round(static_cast<double>(update.clusters) * part), 1);
  };
  update.nprobe = std::min(share(o.retrieval), update.clusters);
  update.estimated =
      o.estimation > 0 ? std::min(share(o.estimation), update.clusters - update.nprobe) : 0;
}

WaveGrowth RetroShape::Prompt(int64_t n) const {
  const int64_t tokens = n - sink - recent;
  LC_CHECK(tokens >= o.update_tokens);
  WaveGrowth growth;
  growth.segments =
      std::max<int64_t>(Round(static_cast<double>(n) / static_cast<double>(o.segment_tokens)), 1);
  int64_t unit = std::lcm(kClusterUnit, growth.segments);
  if (unit > tokens) {  // little is left between a long sink and a long recent window
    growth.segments = 1;
    unit = kClusterUnit;
  }
  const int64_t wanted =
      std::max(Round(static_cast<double>(n) / static_cast<double>(o.cluster_tokens)), unit);
  const int64_t lower = wanted / unit * unit;
  growth.clusters = wanted - lower <= lower + unit - wanted ? lower : lower + unit;
  growth.clusters = std::min(growth.clusters, tokens / unit * unit);
  const auto count = static_cast<double>(growth.clusters);
  growth.nprobe = std::min(std::max<int64_t>(Round(count * o.retrieval), 1), growth.clusters);
  growth.estimated = std::min(Round(count * o.estimation), growth.clusters - growth.nprobe);
  return growth;
}

int64_t RetroShape::SteadyPages(int64_t n) const {
  return CeilDiv(std::min(n, ring()) + sink, pages.page_tokens);
}

int64_t RetroShape::CacheBlocks(int64_t nprobe) const {
  return static_cast<int64_t>(std::ceil(o.cache * static_cast<double>(nprobe))) * cluster_blocks;
}

int64_t RetroShape::BufferBlocks(int64_t nprobe) const {
  return std::max(kLeastBuffer, 4 * nprobe) * cluster_blocks;
}

int64_t RetroShape::ClusterRoom(int64_t n) const {
  if (n <= most_steady()) return 0;
  // A prompt's clusters are rounded to a multiple of lcm(8, segments), which is largest for an odd
  // number of segments; updates may have more clusters than their tokens require.
  const int64_t segments =
      std::max<int64_t>(Round(static_cast<double>(n) / static_cast<double>(o.segment_tokens)), 1);
  const int64_t unit = kClusterUnit * (segments % 2 == 1 ? segments : segments - 1);
  const int64_t excess = std::max<int64_t>(update.clusters - o.update_tokens / o.cluster_tokens, 0);
  // Updates are clustered before their last tokens have left the recent window.
  const int64_t tokens = n + recent;
  return CeilDiv(tokens, o.cluster_tokens) + tokens / o.update_tokens * excess + unit;
}

int64_t RetroShape::NprobeRoom(int64_t n) const {
  if (n <= most_steady()) return 0;
  const double excess = std::max(
      static_cast<double>(update.nprobe) - static_cast<double>(update.clusters) * o.retrieval, 0.0);
  const int64_t updates = (n + recent) / o.update_tokens;
  const double room =
      static_cast<double>(ClusterRoom(n)) * o.retrieval + static_cast<double>(updates) * excess;
  return static_cast<int64_t>(std::ceil(room)) + 1;
}

int64_t RetroShape::CachePages(int64_t n) const {
  return n <= most_steady() ? 0 : PagesOfBlocks(CacheBlocks(NprobeRoom(n)));
}

int64_t RetroShape::BufferPages(int64_t n) const {
  return n <= most_steady() ? 0 : PagesOfBlocks(BufferBlocks(NprobeRoom(n)));
}

TierBytes RetroShape::ForkBytesFor(int64_t shared, int64_t tokens) const {
  // Rows are written again when they are clustered: those not clustered at the time of the fork are
  // separate for each fork.
  const int64_t indexed = std::max<int64_t>(shared - ring(), 0);
  const TableShape store = StoreTable();
  const int64_t host = lists * (store.BlocksFor(tokens) - indexed / store.page_tokens);
  const int64_t device =
      lists * (SteadyPages(tokens) + IndexPages(tokens) + CachePages(tokens)) +
      layout.kv_heads * (BufferPages(tokens) + kStagingBuffers * StagingPages(tokens));
  return {.device = static_cast<uint64_t>(device) * pages.page_bytes,
          .host = static_cast<uint64_t>(host) * pages.page_bytes};
}

}  // namespace litecache::lab
