// Clusters forced on retroinfer's selection, replacing those it found: a table has an order of
// `recorded` clusters, each of which represents its share of any number of clusters.
#pragma once

#include <cstdint>

#include "lab/namespaces.h"
#include "ops/common/host_device.h"

namespace litecache::lab::ops {

// The first of `clusters` clusters represented by cluster `id` of the `recorded` ones.
LC_HOST_DEVICE int32_t FirstCluster(int32_t id, int32_t clusters, int32_t recorded) {
  return static_cast<int32_t>((int64_t{id} * clusters + recorded - 1) / recorded);
}

}  // namespace litecache::lab::ops
