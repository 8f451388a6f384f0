#include "lab/policies/retroinfer/ops/clusters.h"

#include <algorithm>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "lab/policies/retroinfer/ops/clusters_cpu.h"

namespace litecache::lab::ops {
namespace {

// Enough to make a thread worth its merge, and few enough to keep merges small.
constexpr int64_t kStateClusters = 256;
constexpr int64_t kMaxStates = 8;

void CheckClusters(const PagedClusters& clusters) {
  LC_CHECK(!clusters.format.quantized() && clusters.format.head_dim >= 1 &&
           clusters.page_clusters >= 1);
}

}  // namespace

int64_t EstimateStates(int64_t count) {
  return std::min((count + kStateClusters - 1) / kStateClusters, kMaxStates);
}

void ClusterSelect(Stream& stream, int64_t group, std::span<ClusterSelectWork> work) {
  LC_CHECK(group >= 1);
  for (const ClusterSelectWork& w : work) {
    CheckClusters(w.clusters);
    LC_CHECK(w.count >= 1 && w.ranked >= 0 && w.unranked >= 0 && w.ranked + w.unranked >= 1,
             "{} + {} of {} clusters", w.ranked, w.unranked, w.count);
    LC_CHECK(w.scale > 0 && w.logits != nullptr && w.scores != nullptr && w.ids != nullptr);
  }
  cpu::ClusterSelect(AsCpu(stream).pool(), group, work);
}

void ClusterEstimate(Stream& stream, int64_t group, std::span<const ClusterEstimateWork> work) {
  LC_CHECK(group >= 1);
  for (const ClusterEstimateWork& w : work) {
    CheckClusters(w.clusters);
    LC_CHECK(w.count >= 0 && (w.count == 0 || (w.ids != nullptr && w.states != nullptr)));
  }
  cpu::ClusterEstimate(AsCpu(stream).pool(), group, work);
}

}  // namespace litecache::lab::ops
