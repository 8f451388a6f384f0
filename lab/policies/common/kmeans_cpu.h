// CPU implementations behind kmeans.h: same contracts, with checked arguments.
#pragma once

#include "base/thread_pool.h"
#include "lab/policies/common/kmeans.h"
#include "lab/policies/common/namespaces.h"

namespace litecache::lab::ops::cpu {

void AssignToCentroids(ThreadPool& pool, std::span<const AssignWork> work);
void UpdateCentroids(ThreadPool& pool, std::span<const CentroidWork> work);

}  // namespace litecache::lab::ops::cpu
