// Constants that kernels read about policy litecache's layers: the list of each head's rows, which
// heads attend all of theirs, thresholds and importance.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "kv/heads/head_plan.h"
#include "kv/litecache/shape.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

struct LiteCacheTables {
  Buffer memory;  // device memory that the others point into
  // Without counters and work arrays.
  std::vector<ops::cuda::LiteCacheLayer> layers;
  // [sets][layers]: each head's list among a layer's staging pages.
  std::array<std::vector<const int32_t*>, 2> staging_lists;
};

LiteCacheTables MakeLiteTables(Device& device, const Shape& shape, const HeadPlan& plan);

}  // namespace litecache::kv
