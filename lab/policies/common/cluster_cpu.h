// CPU implementations behind lab/policies/common/kmeans.h and
// lab/policies/retroinfer/ops/clusters.h: same contracts, arguments already checked.
#pragma once

#include "base/thread_pool.h"
#include "lab/policies/common/kmeans.h"
#include "lab/policies/retroinfer/ops/clusters.h"

namespace litecache::ops::cpu {

void AssignToCentroids(ThreadPool& pool, std::span<const AssignWork> work);
void UpdateCentroids(ThreadPool& pool, std::span<const CentroidWork> work);
void ClusterSelect(ThreadPool& pool, int64_t group, std::span<ClusterSelectWork> work);
void ClusterEstimate(ThreadPool& pool, int64_t group, std::span<const ClusterEstimateWork> work);

}  // namespace litecache::ops::cpu
