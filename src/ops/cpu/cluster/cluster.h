// CPU implementations behind ops/kmeans.h and ops/clusters.h: same contracts, arguments already
// checked.
#pragma once

#include "base/thread_pool.h"
#include "ops/clusters.h"
#include "ops/kmeans.h"

namespace litecache::ops::cpu {

void AssignToCentroids(ThreadPool& pool, std::span<const AssignWork> work);
void UpdateCentroids(ThreadPool& pool, std::span<const CentroidWork> work);
void ClusterSelect(ThreadPool& pool, int64_t group, std::span<ClusterSelectWork> work);
void ClusterEstimate(ThreadPool& pool, int64_t group, std::span<const ClusterEstimateWork> work);

}  // namespace litecache::ops::cpu
