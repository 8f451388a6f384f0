// Caches that transfer whole contexts from the host (policy `kvpr`), without their parts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kv/cache.h"
#include "kv/offload/recompute.h"
#include "kv/offload/shape.h"

namespace litecache::kv::offload {

// Creates the cache for the device that the shape was made for.
std::unique_ptr<Cache> CreateOffloadCache(Device& device, const std::string& policy,
                                          const Shape& shape, std::optional<Recompute> recompute,
                                          const TierBytes& budget);
// Its part for GPUs. device: a CudaDevice; shape: made for a GPU.
std::unique_ptr<Cache> CreateCudaOffloadCache(Device& device, std::string policy,
                                              const Shape& shape,
                                              std::optional<Recompute> recompute,
                                              const TierBytes& budget);

}  // namespace litecache::kv::offload
