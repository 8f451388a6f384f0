// CPU implementations behind kmeans.h: same contracts, with checked arguments.
#pragma once

#include "base/thread_pool.h"
#include "lab/namespaces.h"
#include "lab/policies/common/kmeans.h"

namespace litecache::lab::ops::cpu {

void AssignToCentroids(ThreadPool& pool, std::span<const AssignWork> work);
void UpdateCentroids(ThreadPool& pool, std::span<const CentroidWork> work);

}  // namespace litecache::lab::ops::cpu
