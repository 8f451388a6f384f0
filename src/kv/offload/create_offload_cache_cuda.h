// Caches that bring whole contexts from the host (policy `kvpr`), on a GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kv/cache.h"
#include "kv/offload/recompute.h"
#include "kv/offload/shape.h"

namespace litecache::kv::offload {

// device: a CudaDevice; shape: made for a GPU.
std::unique_ptr<Cache> CreateCudaOffloadCache(Device& device, std::string policy,
                                              const Shape& shape,
                                              std::optional<Recompute> recompute,
                                              const TierBytes& budget);

}  // namespace litecache::kv::offload
