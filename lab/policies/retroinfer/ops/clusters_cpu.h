// CPU implementations behind clusters.h: same contracts, with checked arguments.
#pragma once

#include "base/thread_pool.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/ops/clusters.h"

namespace litecache::lab::ops::cpu {

void ClusterSelect(ThreadPool& pool, int64_t group, std::span<ClusterSelectWork> work);
void ClusterEstimate(ThreadPool& pool, int64_t group, std::span<const ClusterEstimateWork> work);

}  // namespace litecache::lab::ops::cpu
